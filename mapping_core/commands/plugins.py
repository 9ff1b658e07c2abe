"""`mapping plugins`: what is installed, what it adds, and what did not load and why."""

from __future__ import annotations

import json
import logging
from collections import Counter
from typing import TYPE_CHECKING

import attrs
import click

from mapping_core.components import KINDS
from mapping_core.loading import SLOW
from mapping_core.registry import Registry

if TYPE_CHECKING:
    from rich.table import Table


@click.command("plugins")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
@click.option("--strict", is_flag=True, help="Exit with 1 when a plugin did not load.")
@click.pass_context
def command(ctx: click.Context, as_json: bool, strict: bool) -> None:
    """List the installed plugins and components, and the plugins that did not load.

    MAPPING_BLOCK and MAPPING_PLUGINS (comma separated distributions) keep plugins out.
    """
    # The report below shows every problem: logging's last resort would show it twice.
    logging.getLogger("mapping_core").addHandler(logging.NullHandler())
    registry = Registry.discover()
    if as_json:
        click.echo(json.dumps(report(registry), indent=2))
    else:
        _print(registry)
    if strict and registry.problems:
        ctx.exit(1)


def report(registry: Registry) -> dict[str, object]:
    """Return what ``mapping plugins --json`` prints.

    >>> sorted(report(Registry.of()))
    ['blocked', 'components', 'plugins', 'problems']
    """
    return {
        "plugins": [attrs.asdict(plugin) for plugin in registry.plugins],
        "components": {
            kind: [
                {
                    "name": entry.name,
                    "distribution": entry.distribution,
                    "version": entry.version,
                    "plugin": entry.plugin,
                }
                for entry in registry.catalog(kind)
            ]
            for kind in KINDS
        },
        "problems": [attrs.asdict(problem) for problem in registry.problems],
        "blocked": list(registry.blocked),
    }


def _print(registry: Registry) -> None:
    from rich.console import Console  # here: JSON needs none of it
    from rich.markup import escape

    console = Console()
    console.print(_components(registry))
    for name in registry.blocked:
        console.print(f"kept out: {name}", markup=False)
    for plugin in registry.plugins:
        if plugin.seconds > SLOW:
            what = f"plugin {plugin.entry_point!r} of {plugin.distribution} {plugin.version}: {plugin.seconds:.2f} s"
            console.print(
                f"[yellow]slow to load:[/yellow] {escape(what)}; move heavy imports into build()", soft_wrap=True
            )
    for problem in registry.problems:
        console.print(f"[red]did not load:[/red] {escape(str(problem))}", soft_wrap=True)


def _components(registry: Registry) -> Table:
    from rich.markup import escape
    from rich.table import Table

    table = Table("kind", "name", "distribution", "version", title="Components")
    supplied = Counter((entry.kind, entry.name) for entry in registry.entries)
    for kind in KINDS:
        for entry in registry.catalog(kind):
            name = escape(entry.name)
            if supplied[kind, entry.name] > 1:
                name = f"{name} [yellow](ambiguous: write {escape(entry.distribution)}:{name})[/yellow]"
            table.add_row(kind, name, escape(entry.distribution), escape(entry.version))
    return table
