"""The `mapping` command: assembles the commands of `mapping_core.commands`, one file each.

A command's module is imported when the command is asked for, so that ``mapping plugins``
never pays for what ``mapping train`` needs. Each module has its click command as `command`.
"""

from __future__ import annotations

import importlib
import sys
import traceback
from typing import Any

import click

import mapping_core
from mapping_core.errors import MappingError

#: The commands in the order `mapping --help` lists them; their files are named so, with _ for -.
COMMANDS = ("train", "demo", "inspect", "export", "plugins", "check", "new-plugin")


class LazyGroup(click.Group):
    """A click group whose commands are imported on use and whose errors are one line."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands, without importing them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one command; it takes ``--traceback`` as the group itself does."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"mapping_core.commands.{cmd_name.replace('-', '_')}").command
        if all(parameter.name != "traceback" for parameter in command.params):
            command.params.append(traceback_option())
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; an error ends it in one line: with 2 if this package raised it on purpose, else with 1."""
        try:
            return super().invoke(ctx)
        except MappingError as error:
            _report(ctx, str(error))
            ctx.exit(2)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except Exception as error:  # of the user's network or data, or a fault of ours
            _report(ctx, f"{type(error).__name__}: {error} (--traceback shows where)")
            ctx.exit(1)


def _report(ctx: click.Context, message: str) -> None:
    if ctx.meta.get("mapping_core.traceback"):
        traceback.print_exc(file=sys.stderr)
    click.echo(f"mapping: error: {' '.join(message.split())}", err=True)


def traceback_option() -> click.Option:
    """Return the option ``--traceback``, kept in the context that all levels share."""

    def keep(ctx: click.Context, _parameter: click.Parameter, value: bool) -> None:
        ctx.meta["mapping_core.traceback"] = value or ctx.meta.get("mapping_core.traceback", False)

    return click.Option(
        ["--traceback"], is_flag=True, expose_value=False, callback=keep, help="Show where an error came from."
    )


@click.group(cls=LazyGroup, params=[traceback_option()], context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(mapping_core.__version__, prog_name="mapping", message="%(prog)s %(version)s")
def main() -> None:
    """Train any PyTorch model by training a small latent vector."""
