"""The mapping loss: `stability`, `smoothness` and `alignment` of what a latent generates, and `mapping`, their sum.

After the loss of "Mapping Networks" (arXiv 2602.19134), which adds terms of these names to the
task's. Each term is a loss by itself too, to watch or to combine otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from attrs import define, field
from attrs.validators import ge, gt, in_, min_len

from mapping_core import LossConfig, hookimpl

if TYPE_CHECKING:
    from mapping_core import Loss
    from mapping_core.contexts import LossContext

__version__ = "0.1.0"
__all__ = ["Alignment", "MappingLoss", "Smoothness", "Stability", "TermConfig", "mapping_losses"]


@define(frozen=True, kw_only=True)
class TermConfig(LossConfig):
    """A loss that may be a term of `mapping`: times `weight` there, and evaluated in every `every`-th step alone.

    What is evaluated every k-th step counts k times then, so the weight means the same for every k.
    """

    weight: float = field(default=0.1, validator=gt(0.0))
    every: int = field(default=1, validator=ge(1))


@define(frozen=True, kw_only=True)
class Stability(TermConfig):
    """How much the outputs change when the latent does by `noise` (a standard deviation), dropout drawn alike.

    `distance` is "kl", between the class probabilities of logits [N, C, ...], or "squared"; "auto" takes
    the first for integer targets. 2 forward passes more.
    """

    name = "stability"
    noise: float = field(default=0.1, validator=gt(0.0))
    distance: str = field(default="auto", validator=in_(("auto", "kl", "squared")))

    def build(self, context: LossContext) -> Loss:
        from mapping_plugin_mapping_loss._model import require_latents
        from mapping_plugin_mapping_loss._stability import StabilityLoss

        require_latents(context.model, self.name)
        return StabilityLoss(noise=self.noise, distance=self.distance)


@define(frozen=True, kw_only=True)
class Smoothness(TermConfig):
    """The mean squared gradient of one output (of = "outputs") or one weight ("mapping") in the latent.

    Estimated from `samples` random projections. For a linear mapping, that of weights is a constant: a
    notice says so once, and the term is left out. "outputs": 1 forward pass more, and a backward pass that
    is differentiated; "mapping": no pass of the target.
    """

    name = "smoothness"
    weight: float = field(default=1e-3, validator=gt(0.0))
    of: str = field(default="outputs", validator=in_(("outputs", "mapping")))
    samples: int = field(default=1, validator=ge(1))

    def build(self, context: LossContext) -> Loss:
        from mapping_plugin_mapping_loss._model import require_latents
        from mapping_plugin_mapping_loss._smoothness import MappingSmoothness, OutputSmoothness

        model = require_latents(context.model, self.name)
        if self.of == "outputs":
            return OutputSmoothness(samples=self.samples)
        return MappingSmoothness(model, samples=self.samples)


@define(frozen=True, kw_only=True)
class Alignment(TermConfig):
    """Whether outputs turn as the latent does: two displacements of it at a random angle, and the outputs' angle.

    The squared difference of the two cosines; displacements have the length of noise of deviation `noise`.
    3 forward passes more.
    """

    name = "alignment"
    noise: float = field(default=0.1, validator=gt(0.0))

    def build(self, context: LossContext) -> Loss:
        from mapping_plugin_mapping_loss._alignment import AlignmentLoss
        from mapping_plugin_mapping_loss._model import require_latents

        require_latents(context.model, self.name)
        return AlignmentLoss(noise=self.noise)


def _tuple(terms: LossConfig | str | Iterable[LossConfig | str]) -> tuple[LossConfig | str, ...]:
    return (terms,) if isinstance(terms, LossConfig | str) else tuple(terms)


@define(frozen=True, kw_only=True)
class MappingLoss(LossConfig):
    """The `task` loss and the weighted `terms`; in validation the task loss alone.

    With `learned`, coefficients train too (uncertainty weighting), from `weight` on, and cannot collapse. The
    pass at the latent itself is made once for all terms: 1 forward pass and 1 more for stability, 2 for alignment.
    """

    name = "mapping"
    task: LossConfig | str = "auto"
    terms: tuple[LossConfig | str, ...] = field(
        default=(Stability(), Smoothness(), Alignment()), converter=_tuple, validator=min_len(1)
    )
    learned: bool = False

    def build(self, context: LossContext) -> Loss:
        from mapping_plugin_mapping_loss._sum import build_sum

        return build_sum(self, context)


@hookimpl
def mapping_losses() -> list[type[LossConfig]]:
    return [MappingLoss, Stability, Smoothness, Alignment]
