"""Modulations of generated weights, and the strategy `finetune` that gates a pretrained network.

`additive`, `affine`, `low_rank`, `gain` and `block_scale` follow the same latent as the weights
they change, through fixed maps: they train nothing of their own.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from attrs import define, field
from attrs.validators import deep_iterable, ge, gt, in_, instance_of, optional

from mapping_core import GeneratorConfig, ModulationConfig, hookimpl

if TYPE_CHECKING:
    from mapping_core import Generator, Modulation
    from mapping_core.contexts import GeneratorContext, ModulationContext

__version__ = "0.1.0"
__all__ = [
    "Additive",
    "Affine",
    "BlockScale",
    "Finetune",
    "Gain",
    "LowRank",
    "mapping_generators",
    "mapping_modulations",
]


@define(frozen=True, kw_only=True)
class Additive(ModulationConfig):
    """The paper's modulation: the latent, times `alpha`, is added to every row of the mapping.

    For a linear mapper that is one number added to every weight, ``alpha ||z||^2`` in units of the layer's scale.
    The default is of the size of the rest for about 2,000 numbers of standard deviation 1.
    """

    name = "additive"
    alpha: float = 5e-4

    def build(self, context: ModulationContext) -> Modulation:
        from mapping_plugin_modulation._additive import AdditiveModulation

        return AdditiveModulation(context, alpha=self.alpha)


@define(frozen=True, kw_only=True)
class Gain(ModulationConfig):
    """A factor for each output channel: ``theta = (base + delta) (1 + g)``, 1 at the start.

    The channels of all parameters of a latent share `groups` numbers (by default as many as the latent has), so
    2,048 numbers gate a whole transformer. `strength` is the factor's change for a latent of standard deviation 1.
    """

    name = "gain"
    groups: int | None = field(default=None, validator=optional(ge(1)))
    strength: float = field(default=0.1, validator=gt(0.0))

    def build(self, context: ModulationContext) -> Modulation:
        from mapping_plugin_modulation._gain import GainModulation

        return GainModulation(context, groups=self.groups, strength=self.strength)


@define(frozen=True, kw_only=True)
class Affine(ModulationConfig):
    """A factor and a shift for each output channel: ``theta = (base + delta) (1 + g) + s h``, s the layer's scale.

    `strength` multiplies both.
    """

    name = "affine"
    strength: float = field(default=0.1, validator=gt(0.0))

    def build(self, context: ModulationContext) -> Modulation:
        from mapping_plugin_modulation._affine import AffineModulation

        return AffineModulation(context, strength=self.strength)


@define(frozen=True, kw_only=True)
class BlockScale(ModulationConfig):
    """A factor for each block of the target: ``theta = (base + delta) (1 + g)``, 1 at the start; for fine-tuning.

    A block is a module that owns parameters, or, with `depth`, the first so many parts of its path: with 2,
    "layer1.0.conv1" belongs to "layer1.0".
    """

    name = "block_scale"
    depth: int | None = field(default=None, validator=optional(ge(1)))
    strength: float = field(default=0.1, validator=gt(0.0))

    def build(self, context: ModulationContext) -> Modulation:
        from mapping_plugin_modulation._block_scale import BlockScaleModulation

        return BlockScaleModulation(context, depth=self.depth, strength=self.strength)


@define(frozen=True, kw_only=True)
class LowRank(ModulationConfig):
    """Adds to each matrix ``s U diag(c) V'`` with fixed signs U and V, and `rank` numbers c that follow the latent."""

    name = "low_rank"
    rank: int = field(default=4, validator=ge(1))
    strength: float = field(default=1.0, validator=gt(0.0))

    def build(self, context: ModulationContext) -> Modulation:
        from mapping_plugin_modulation._low_rank import LowRankModulation

        return LowRankModulation(context, rank=self.rank, strength=self.strength)


def _patterns(blocks: str | Iterable[str]) -> tuple[str, ...]:
    return (blocks,) if isinstance(blocks, str) else tuple(blocks)


@define(frozen=True, kw_only=True)
class Finetune(GeneratorConfig):
    """Changes chosen `blocks` of a pretrained target through one latent; the rest keeps its values.

    `blocks` are patterns as for ``mapped=``: names, paths or class names ("layer4", "*.bias", "BatchNorm2d"); empty
    means all. `kind` "gates" multiplies each output channel by ``1 + strength * (G z)``; "deltas" adds to each
    weight, as `slvt` does. Either way the model starts as the target.
    """

    name = "finetune"
    blocks: tuple[str, ...] = field(default=(), converter=_patterns, validator=deep_iterable(instance_of(str)))
    kind_of_change: str = field(default="gates", validator=in_(("gates", "deltas")), alias="kind")
    strength: float = field(default=0.1, validator=gt(0.0))

    def chosen(self) -> tuple[str, ...] | None:
        return self.blocks or None

    def build(self, context: GeneratorContext) -> Generator:
        if self.kind_of_change == "deltas":
            return context.inner(None, layout=context.layout, latent_dim=context.latent_dim)
        from mapping_plugin_modulation._finetune import GateGenerator

        return GateGenerator(context, strength=self.strength)


@hookimpl
def mapping_modulations() -> list[type[ModulationConfig]]:
    return [Additive, Affine, LowRank, Gain, BlockScale]


@hookimpl
def mapping_generators() -> list[type[GeneratorConfig]]:
    return [Finetune]
