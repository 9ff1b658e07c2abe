"""What core hands to a component's `build`: plain facts, and no torch at import."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from attrs import define

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn

    from mapping_core.components import MapperConfig, ModulationConfig
    from mapping_core.expansion import Expansion
    from mapping_core.target.layout import Layout, ParameterSpec


@define(frozen=True, kw_only=True)
class MapperContext:
    """The size and the seed of one mapper.

    `in_features` is d, the numbers of the latent; `out_features` is n, the weights it
    makes. Draw every random number from `mapping_core.random` with `(seed, stream)`:
    `seed` is the model's, `stream` tells this mapper from its siblings.
    """

    in_features: int
    out_features: int
    seed: int
    stream: int = 0


@define(frozen=True, kw_only=True)
class ModulationContext:
    """The latent a modulation follows (`in_features` numbers) and the parameters it acts on."""

    in_features: int
    parameters: tuple[ParameterSpec, ...]
    seed: int
    stream: int = 0


@define(frozen=True, kw_only=True)
class GeneratorContext:
    """What a strategy divides: the target's `layout` and a budget of `latent_dim` numbers."""

    layout: Layout
    latent_dim: int
    seed: int
    mapper: MapperConfig
    modulation: ModulationConfig | None = None

    def expansion(self, parameters: Sequence[ParameterSpec], latent_dim: int, *, stream: int) -> Expansion:
        """Build the usual piece of a strategy: one latent through one mapper into `parameters`."""
        from mapping_core.expansion import Expansion

        count = sum(spec.numel for spec in parameters)
        mapper = self.mapper.build(
            MapperContext(in_features=latent_dim, out_features=count, seed=self.seed, stream=stream)
        )
        modulation = None
        if self.modulation is not None:
            modulation = self.modulation.build(
                ModulationContext(in_features=latent_dim, parameters=tuple(parameters), seed=self.seed, stream=stream)
            )
        return Expansion(parameters, mapper, modulation)


@define(frozen=True, kw_only=True)
class LossContext:
    """The model a loss will be asked about."""

    model: nn.Module


@define(frozen=True, kw_only=True)
class PhasePolicyContext:
    """The length of the run in optimiser steps (None when the loader has no length) and its seed."""

    total_steps: int | None
    seed: int


@define(frozen=True, kw_only=True)
class DynamicsContext:
    """How many numbers the observed trajectory has, and the run's seed."""

    size: int
    seed: int


@define(frozen=True, kw_only=True)
class CallbackContext:
    """Where a run may write (None: nowhere)."""

    run_dir: Path | None
