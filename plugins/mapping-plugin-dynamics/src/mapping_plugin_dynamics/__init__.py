"""Dynamics models: `linear`, `ols`, `subspace`, `dmd`, `kalman`.

Baselines and placebos: `none`, `random`, `lookahead`, `ema`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import define, field
from attrs.validators import and_, ge, gt, instance_of, le, lt

from mapping_core import DynamicsConfig, hookimpl

if TYPE_CHECKING:
    from mapping_core import DynamicsModel
    from mapping_core.contexts import DynamicsContext

__version__ = "0.1.0"
__all__ = [
    "Dmd",
    "Ema",
    "Kalman",
    "Linear",
    "Lookahead",
    "Nothing",
    "Ols",
    "Random",
    "Subspace",
    "mapping_dynamics_models",
]


@define(frozen=True, kw_only=True)
class _Windowed(DynamicsConfig):
    """Keeps the last `snapshots` vectors, one every `stride` steps: `4 * snapshots * size` bytes for float32."""

    snapshots: int = field(default=20, validator=and_(instance_of(int), ge(8)))
    stride: int = field(default=2, validator=and_(instance_of(int), ge(1)))


@define(frozen=True, kw_only=True)
class Linear(_Windowed):
    """Constant velocity: the mean of the window's newer half less that of the older one, over half its length.

    As good as any of the others on real runs, and the cheapest.
    """

    name = "linear"

    def build(self, context: DynamicsContext) -> DynamicsModel:
        from mapping_plugin_dynamics._trends import LinearModel

        return LinearModel(self, context)


@define(frozen=True, kw_only=True)
class Ols(_Windowed):
    """A line, or a curve of `degree` 2, through the window by ordinary least squares, followed from where it ends."""

    name = "ols"
    degree: int = field(default=1, validator=and_(instance_of(int), ge(1), le(2)))

    def build(self, context: DynamicsContext) -> DynamicsModel:
        from mapping_plugin_dynamics._trends import OlsModel

        return OlsModel(self, context)


@define(frozen=True, kw_only=True)
class Subspace(_Windowed):
    """Movement along the window's first `rank` principal directions, each with its own slowing down.

    Along each direction the movement is fitted by ``a + b (1 - exp(-t / tau))``, averaged over time constants as
    the window makes them likely; an infinite one is a line. What moves in no principal direction is taken for noise.
    """

    name = "subspace"
    rank: int = field(default=4, validator=and_(instance_of(int), ge(1), le(7)))

    def build(self, context: DynamicsContext) -> DynamicsModel:
        from mapping_plugin_dynamics._subspace import SubspaceModel

        return SubspaceModel(self, context)


@define(frozen=True, kw_only=True)
class Dmd(_Windowed):
    """Optimised dynamic mode decomposition in `rank` principal directions, with no growing mode.

    Modes may decay, turn or drift: their eigenvalues are at most 1 in magnitude. With `bags` (0: off) as many
    fits, each to three quarters of the snapshots drawn at random, are averaged.
    """

    name = "dmd"
    rank: int = field(default=3, validator=and_(instance_of(int), ge(1), le(5)))
    bags: int = field(default=0, validator=and_(instance_of(int), ge(0), le(50)))

    def build(self, context: DynamicsContext) -> DynamicsModel:
        from mapping_plugin_dynamics._dmd import DmdModel

        return DmdModel(self, context)


@define(frozen=True, kw_only=True)
class Kalman(DynamicsConfig):
    """Kalman filters of the velocity, one for each pair of drift and persistence; the likeliest one proposes.

    It looks every `stride` steps, and proposes after `observations` looks; what it remembers of
    likelihood and noise fades over `memory` of them. It keeps nine vectors, however long the run is.
    """

    name = "kalman"
    stride: int = field(default=4, validator=and_(instance_of(int), ge(1)))
    observations: int = field(default=15, validator=and_(instance_of(int), ge(8)))
    memory: float = field(default=100.0, validator=gt(1.0))

    def build(self, context: DynamicsContext) -> DynamicsModel:
        from mapping_plugin_dynamics._kalman import KalmanModel

        return KalmanModel(self, context)


@define(frozen=True, kw_only=True)
class Nothing(DynamicsConfig):
    """Proposes nothing: what watching and asking cost, without a jump."""

    name = "none"

    def build(self, context: DynamicsContext) -> DynamicsModel:
        from mapping_plugin_dynamics._placebos import NothingModel

        return NothingModel()


@define(frozen=True, kw_only=True)
class Random(_Windowed):
    """A placebo: all that `linear` says, but in a random direction."""

    name = "random"

    def build(self, context: DynamicsContext) -> DynamicsModel:
        from mapping_plugin_dynamics._placebos import RandomModel

        return RandomModel(self, context)


@define(frozen=True, kw_only=True)
class Lookahead(DynamicsConfig):
    """Lookahead as a jump: to slow weights, which move by `alpha` towards the fast ones; at least `k` steps apart.

    Zhang, Lucas, Hinton and Ba, NeurIPS 2019 (arXiv 1907.08610).
    """

    name = "lookahead"
    alpha: float = field(default=0.5, validator=and_(gt(0.0), lt(1.0)))
    k: int = field(default=5, validator=and_(instance_of(int), ge(1)))

    def build(self, context: DynamicsContext) -> DynamicsModel:
        from mapping_plugin_dynamics._averages import LookaheadModel

        return LookaheadModel(self, context)


@define(frozen=True, kw_only=True)
class Ema(DynamicsConfig):
    """A jump to the exponential moving average: less noise, no prediction. After `1 / (1 - decay)` steps."""

    name = "ema"
    decay: float = field(default=0.98, validator=and_(gt(0.0), lt(1.0)))

    def build(self, context: DynamicsContext) -> DynamicsModel:
        from mapping_plugin_dynamics._averages import EmaModel

        return EmaModel(self, context)


@hookimpl
def mapping_dynamics_models() -> list[type[DynamicsConfig]]:
    return [Linear, Ols, Subspace, Dmd, Kalman, Nothing, Random, Lookahead, Ema]
