"""`mapping new-plugin`: a project that works, to change into one's own."""

from __future__ import annotations

from pathlib import Path

import click

from mapping_core.components import KINDS
from mapping_core.scaffold import write_plugin


@click.command("new-plugin")
@click.argument("name")
@click.option("--kind", required=True, type=click.Choice(list(KINDS)), help="What kind of component it adds.")
@click.option(
    "--directory",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=".",
    help="Where its folder goes. [default: here]",
)
def command(name: str, kind: str, directory: Path) -> None:
    """Write the project of a plugin that adds a component called NAME: code, tests, packaging, CI.

    It passes its tests as it is; change what src/ has into your own.
    """
    folder = write_plugin(name, kind, directory)
    click.echo(f"{folder} is written. Next:")
    click.echo(f"  cd {folder}")
    click.echo("  python -m pip install -e . pytest")
    click.echo("  python -m pytest")
    click.echo(f"  mapping check {folder.name}")
