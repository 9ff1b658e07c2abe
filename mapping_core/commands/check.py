"""`mapping check`: hold an installed plugin, or a module, to the contract of what it adds."""

from __future__ import annotations

import importlib
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
from packaging.utils import canonicalize_name

from mapping_core.errors import ConfigError, PluginError
from mapping_core.faults import did_you_mean
from mapping_core.loading import Entry
from mapping_core.registry import Registry

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mapping_core.testing.checking import Outcome

_STYLES = {"passed": "[green]passed[/green]", "failed": "[red]failed[/red]", "refused": "[yellow]refused[/yellow]"}


@click.command("check")
@click.argument("plugin", metavar="DIST|MODULE")
@click.pass_context
def command(ctx: click.Context, plugin: str) -> None:
    """Run the conformance checks on every component that DIST (installed) or MODULE (importable) adds.

    A component is checked with its defaults. What has none, or refuses the small model that it
    is tried with, is said to be so: its own tests check it, with a suite of mapping_core.testing.
    Exits with 1 when a check fails.
    """
    # What did not load is reported below: logging's last resort would show it twice.
    logging.getLogger("mapping_core").addHandler(logging.NullHandler())
    entries = _entries(plugin)
    outcomes = [outcome for entry in entries for outcome in _outcomes(entry)]
    _print(outcomes)
    if any(outcome.result == "failed" for outcome in outcomes):
        ctx.exit(1)


def _entries(plugin: str) -> list[Entry]:
    registry = Registry.discover()
    name = canonicalize_name(plugin)
    for problem in registry.problems:
        if problem.distribution == name:
            raise PluginError(str(problem))
    if found := [entry for entry in registry.entries if entry.distribution == name]:
        return found
    if not plugin.replace(".", "_").isidentifier():
        known = sorted({loaded.distribution for loaded in registry.plugins})
        hint = did_you_mean(name, known)
        raise ConfigError(f"no plugin {plugin!r} is installed ({', '.join(known)}){'; ' + hint if hint else ''}")
    # a module is looked for where the command runs, as `python -m` does
    sys.path.insert(0, str(Path.cwd()))
    try:
        module = importlib.import_module(plugin)
    except ImportError as error:
        raise ConfigError(
            f"{plugin!r} is neither an installed plugin nor a module that can be imported: {error}"
        ) from error
    return list(Registry.of(module).entries)


def _outcomes(entry: Entry) -> Iterator[Outcome]:
    from mapping_core.testing.checking import Outcome, check_component  # torch enters here

    try:
        component = entry.component()
    except TypeError as error:
        label = f"{entry.kind}:{entry.name}"
        yield Outcome(component=label, check="has_defaults", result="refused", message=f"needs settings: {error}")
    else:
        yield from check_component(component)


def _print(outcomes: list[Outcome]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("component", "check", "result", title="Conformance")
    for outcome in outcomes:
        table.add_row(outcome.component, outcome.check, _STYLES[outcome.result])
    Console().print(table)
    for outcome in outcomes:
        if outcome.message:
            click.echo(f"{outcome.component} {outcome.check}: {outcome.result}: {outcome.message}")
    counts = [f"{sum(each.result == result for each in outcomes)} {result}" for result in _STYLES]
    click.echo(", ".join(counts))
