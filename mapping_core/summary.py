"""The table of `MappingModel.summary`."""

from __future__ import annotations

from io import StringIO
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from mapping_core.target.roles import Role

if TYPE_CHECKING:
    from mapping_core.model import MappingModel
    from mapping_core.target.layout import ParameterSpec


def summarize(model: MappingModel, *, width: int = 110) -> str:
    """One line a parameter: its shape and weights, what feeds it, and how many numbers that has; totals below."""
    fed_by = {name: latent for latent, names in model.generator.assignment().items() for name in names}
    sizes = {name: latent.numel() for name, latent in model.latents.items()}
    table = Table("parameter", "shape", title=f"{type(model.skeleton).__name__} through {model.latent_dim:,} numbers")
    table.add_column("weights", justify="right")
    table.add_column("fed by")
    table.add_column("numbers", justify="right")
    seen: set[str] = set()
    for spec in model.layout.parameters:
        source, numbers = _source(spec, fed_by, sizes, seen)
        name = " = ".join((spec.name, *spec.aliases))
        table.add_row(name, "x".join(map(str, spec.shape)) or "scalar", f"{spec.numel:,}", source, numbers)
    weights = sum(spec.numel for spec in model.layout.parameters)
    buffer = StringIO()
    console = Console(file=buffer, width=width, no_color=True)
    console.print(table)
    console.print(
        f"{weights:,} weights, {model.latent_dim:,} trainable numbers "
        f"({weights / model.latent_dim:,.1f} weights a number)\n"
        f"strategy {model.strategy.name}, mapper {model.mapper.name}, base {model.base}{_moved(model)}, "
        f"seed {model.seed}; "
        f"mapping state {model.mapping_bytes():,} bytes ({model.mapping_bytes() / max(1, weights):.3f} a weight), "
        f"file {model.file_bytes():,} bytes",
        highlight=False,
        soft_wrap=True,
    )
    return buffer.getvalue()


def _moved(model: MappingModel) -> str:
    times = len(model.foldings.entries)
    return f" moved {times} time{'s' * (times > 1)}" if times else ""


def _source(spec: ParameterSpec, fed_by: dict[str, str], sizes: dict[str, int], seen: set[str]) -> tuple[str, str]:
    if spec.role is Role.TRAINED:
        return "itself (trained)", f"{spec.numel:,}"
    if spec.role is Role.FROZEN:
        return "nothing (frozen)", ""
    latent = fed_by[spec.name]
    shown = f"latent {latent or '(root)'}"
    if latent in seen:
        return shown, "''"
    seen.add(latent)
    return shown, f"{sizes[latent]:,}"
