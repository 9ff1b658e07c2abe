"""What core hands to a component's `build`: plain facts, and no torch at import."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from attrs import define, evolve

from mapping_core.building import built
from mapping_core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn

    from mapping_core.components import GeneratorConfig, MapperConfig, ModulationConfig
    from mapping_core.expansion import Expansion
    from mapping_core.interfaces.generator import Generator
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
    """What a strategy divides: the target's `layout` and a budget of `latent_dim` numbers.

    `base` says what theta_0 is (`mapping_core.target.base`); with ``"zero"`` the latent starts at
    random and not at 0.
    """

    layout: Layout
    latent_dim: int
    seed: int
    mapper: MapperConfig
    modulation: ModulationConfig | None = None
    base: str = "current"

    def expansion(self, parameters: Sequence[ParameterSpec], latent_dim: int, *, stream: int) -> Expansion:
        """Build the usual piece of a strategy: one latent through one mapper into `parameters`."""
        from mapping_core.expansion import Expansion

        count = sum(spec.numel for spec in parameters)
        mapper = built(
            self.mapper, MapperContext(in_features=latent_dim, out_features=count, seed=self.seed, stream=stream)
        )
        modulation = None
        if self.modulation is not None:
            modulation = built(
                self.modulation,
                ModulationContext(in_features=latent_dim, parameters=tuple(parameters), seed=self.seed, stream=stream),
            )
        return Expansion(parameters, mapper, modulation)

    def inner(self, strategy: GeneratorConfig | str | None, *, layout: Layout, latent_dim: int) -> Generator:
        """Build the strategy inside a strategy, over a layout of its own; None means one latent for all of it.

        `strategy` is a field of the outer one, of type ``GeneratorConfig | str | None``: a name in
        it is resolved before `build`, and a file records who supplies it. Its latents are the
        outer one's to pass on, with a base for every parameter of `layout`.

        Raises `BudgetError` when `latent_dim` is more than what `layout` has to generate, and
        `PluginError` when the inner strategy breaks its contract.
        """
        from mapping_core.checks import check_generator, check_inner_budget
        from mapping_core.one_latent import OneLatent

        if isinstance(strategy, str):
            raise ConfigError(f"{strategy!r} is a name still: pass what holds it through Registry.resolve")
        name = "one latent" if strategy is None else strategy.name
        if strategy is not None and (chosen := strategy.chosen()) is not None:
            raise ConfigError(
                f"strategy {name!r} inside another one cannot choose what is mapped ({', '.join(chosen)}): use mapped="
            )
        check_inner_budget(latent_dim, layout, name=name)
        context = evolve(self, layout=layout, latent_dim=latent_dim)
        generator = OneLatent(context) if strategy is None else built(strategy, context)
        check_generator(generator, name=name, layout=layout, budget=latent_dim)
        return generator


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
