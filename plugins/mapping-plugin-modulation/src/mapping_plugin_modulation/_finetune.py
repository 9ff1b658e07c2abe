"""The gates of `finetune`."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from mapping_core import Generator
from mapping_core.contexts import GeneratorContext, MapperContext
from mapping_core.errors import BudgetError, ConfigError
from mapping_core.target.layout import ParameterSpec
from mapping_plugin_modulation._rows import RowLine

_LATENT = "z"


class GateGenerator(Generator):
    """``theta_c = base_c * (1 + strength * (G z)_c)``, c a row of a parameter: its output channel.

    The mapper gives one number a row and not a weight, so a step costs next to nothing
    beside the target's. Rows are those of `GainModulation`.
    """

    def __init__(self, context: GeneratorContext, *, strength: float) -> None:
        super().__init__()
        if context.modulation is not None:
            raise ConfigError(
                f"strategy 'finetune' of kind 'gates' is itself a modulation and takes no {context.modulation.name!r}: "
                "use kind='deltas'",
                path="modulation",
            )
        self._specs = {spec.name: spec for spec in context.layout.mapped}
        self.lines = RowLine.of(context.layout.mapped)
        if context.latent_dim > self.lines.count:
            raise BudgetError(
                f"{context.latent_dim:,} numbers are more than the {self.lines.count:,} gates of the chosen blocks: "
                "lower latent_dim, choose more blocks, or use kind='deltas'"
            )
        self.strength = strength
        self.mapper = context.mapper.build(
            MapperContext(in_features=context.latent_dim, out_features=self.lines.count, seed=context.seed)
        )

    @property
    def latent_sizes(self) -> dict[str, int]:
        return {_LATENT: self.mapper.in_features}

    def forward(self, latents: Mapping[str, Tensor], base: Mapping[str, Tensor]) -> dict[str, Tensor]:
        line = self.strength * self.mapper(_widened(latents[_LATENT]))
        return {
            name: _gated(spec, base[name], self.lines.cut(line, name, None), 0) for name, spec in self._specs.items()
        }

    def generate_some(
        self,
        latents: Mapping[str, Tensor],
        base: Mapping[str, Tensor],
        names: frozenset[str],
        rows: tuple[int, int] | None = None,
    ) -> dict[str, Tensor]:
        z = _widened(latents[_LATENT])
        weights = {}
        for name in names & self._specs.keys():
            gates = self.strength * self.mapper.rows(z, *self.lines.range_of(name, rows))
            part = base[name] if rows is None else base[name][rows[0] : rows[1]]
            weights[name] = _gated(self._specs[name], part, self.lines.shaped(gates, name), rows[0] if rows else 0)
        return weights

    def assignment(self) -> dict[str, tuple[str, ...]]:
        return {_LATENT: tuple(self._specs)}


def _widened(z: Tensor) -> Tensor:
    return z if z.dtype == torch.float64 else z.float()


def _gated(spec: ParameterSpec, base: Tensor, gates: Tensor, first: int) -> Tensor:
    """``base * (1 + gates)``; the row that keeps its value has no gate."""
    if spec.fixed_row is not None and first <= spec.fixed_row < first + len(base):
        row = torch.tensor([spec.fixed_row - first], device=gates.device)
        gates = gates.index_fill(-len(spec.shape), row, 0.0)
    return (base * (1 + gates)).to(base.dtype)
