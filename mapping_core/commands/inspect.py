"""`mapping inspect`: what is in a model's file, without its target and without torch."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import click

import mapping_core
from mapping_core.recipe import Header, read_header


@click.command("inspect")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
def command(file: Path, as_json: bool) -> None:
    """Show what FILE, written by `MappingModel.save`, holds and what it needs."""
    header = read_header(file)
    if as_json:
        click.echo(json.dumps({"file": str(file), **report(header)}, indent=2))
        return
    for name, value in _facts(header):
        click.echo(f"{name:<12}{value}")
    _print_tensors(header)


def report(header: Header) -> dict[str, object]:
    """Return what ``mapping inspect --json`` prints of a header: bytes, recipe, tensors."""
    return {
        "bytes": header.file_bytes,
        "recipe": header.recipe,
        "tensors": [attrs.asdict(tensor) for tensor in header.tensors],
    }


def _facts(header: Header) -> Iterator[tuple[str, str]]:
    recipe = header.recipe
    written = f"{recipe['format']}, written by mapping-core {recipe['version']}"
    if header.newer:
        yield "format", f"{written}; mapping-core {mapping_core.__version__} cannot load it: upgrade"
        yield from ((key, json.dumps(value)) for key, value in recipe.items() if key not in ("format", "version"))
        return
    yield "format", f"{written}, random numbers of version {recipe['random']}"
    yield "numbers", f"{recipe['latent_dim']:,} trainable, for {recipe['weights']:,} mapped weights"
    for role, component in recipe["components"].items():
        yield role, f"{_settings(component['settings'])}, from {component['supplier'] or 'no plugin'}"
        for path, inside in component.get("nested", {}).items():
            yield "", f"{role}.{path} from {inside['supplier'] or 'no plugin'}"
    yield "seed", str(recipe["seed"])
    yield "base", f"{recipe['base']}, sha256 {recipe['base_sha256']}"
    yield "layout", recipe["layout"]
    yield "buffers", recipe["buffers"]
    yield from ((role, ", ".join(map(str, patterns))) for role, patterns in recipe["roles"].items())


def _settings(settings: dict[str, Any]) -> str:
    """A component's name, and its settings in parentheses.

    >>> _settings({"type": "lrd", "rank": 8})
    'lrd (rank=8)'
    """
    shown = ", ".join(f"{key}={json.dumps(value)}" for key, value in settings.items() if key != "type")
    return f"{settings['type']} ({shown})" if shown else str(settings["type"])


def _print_tensors(header: Header) -> None:
    from rich.console import Console  # here: JSON needs none of it
    from rich.markup import escape
    from rich.table import Table

    table = Table("tensor", "dtype", "shape")
    table.add_column("bytes", justify="right")
    for tensor in header.tensors:
        shape = "x".join(map(str, tensor.shape)) or "scalar"
        table.add_row(escape(tensor.name), escape(tensor.dtype), shape, f"{tensor.bytes:,}")
    Console().print(table)
    click.echo(f"{sum(tensor.bytes for tensor in header.tensors):,} bytes of tensors, {header.file_bytes:,} in all")
