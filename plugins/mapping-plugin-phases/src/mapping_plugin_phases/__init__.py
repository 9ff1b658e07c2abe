"""Phase policies: when predictive training predicts, and for how long."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from attrs import define, field
from attrs.validators import and_, deep_iterable, ge, gt, instance_of, le, lt, min_len

from mapping_core import PhasePolicyConfig, hookimpl

if TYPE_CHECKING:
    from mapping_core import PhasePolicy
    from mapping_core.contexts import PhasePolicyContext

__version__ = "0.1.0"
__all__ = ["Adaptive", "Bandit", "Fixed", "Sampled", "mapping_phase_policies"]


def _steps(default: int, least: int = 1) -> Any:
    return field(default=default, validator=and_(instance_of(int), ge(least)))


def _several(value: Iterable[int]) -> tuple[int, ...]:
    return tuple(value)


_each_a_step = deep_iterable(and_(instance_of(int), ge(1)), and_(instance_of(tuple), min_len(1)))


def _is_range(instance: Any, attribute: Any, value: tuple[int, ...]) -> None:
    if len(value) != 2 or not all(type(each) is int for each in value) or not 1 <= value[0] <= value[1]:
        raise ValueError(f"'{attribute.name}' must be the least and the most, two steps in this order: got {value}")


@define(frozen=True, kw_only=True)
class Fixed(PhasePolicyConfig):
    """A jump after every `full` steps: WARMUP, then FULL, PREDICT and, where the jump was kept, CORRECT, over and over.

    The dynamics model proposes a displacement for each of `horizons`, in steps, and the guard chooses and judges. How
    often it is really asked is the guard's to say: after a rejection it waits, and its share of the compute is bounded.
    """

    name = "fixed"
    warmup: int = _steps(100)
    full: int = _steps(20)
    correct: int = _steps(10)
    horizons: tuple[int, ...] = field(default=(10, 20, 40, 80), converter=_several, validator=_each_a_step)

    def build(self, context: PhasePolicyContext) -> PhasePolicy:
        from mapping_plugin_phases._fixed import FixedPolicy

        return FixedPolicy(self)


@define(frozen=True, kw_only=True)
class Adaptive(PhasePolicyConfig):
    """`fixed` with lengths that follow a confidence, from 0 to 1: jumps that are kept and come as forecast raise it.

    A judged jump moves it by `weight` of the way: to 0 if it was not kept; if it was, to c / (c + e), with the
    change c of the loss and the error e of its forecast (without a forecast, to 1). With confidence FULL goes from the
    most to the least of `full`, and the longest horizon from the least to the most of `reach`, both in equal ratios.
    """

    name = "adaptive"
    warmup: int = _steps(100)
    full: tuple[int, ...] = field(default=(20, 160), converter=_several, validator=_is_range)
    correct: int = _steps(10)
    reach: tuple[int, ...] = field(default=(5, 80), converter=_several, validator=_is_range)
    weight: float = field(default=0.3, validator=and_(gt(0.0), le(1.0)))

    def build(self, context: PhasePolicyContext) -> PhasePolicy:
        from mapping_plugin_phases._adaptive import AdaptivePolicy

        return AdaptivePolicy(self)


@define(frozen=True, kw_only=True)
class Bandit(PhasePolicyConfig):
    """After every `full` steps, the horizon of which LinUCB expects the most, or no jump where it expects nothing.

    The reward is by what share faster the loss falls with a jump, all seconds counted, than in FULL phases alone, as
    they were over the last `window` steps; not to jump gives 0. `alpha` is how many standard deviations an arm is
    given the benefit of, `ridge` how many observations of 0 it begins with. Seconds decide, so two runs may differ.

    Li, Chu, Langford and Schapire, WWW 2010 (arXiv 1003.0146).
    """

    name = "bandit"
    warmup: int = _steps(100)
    full: int = _steps(20)
    correct: int = _steps(10)
    horizons: tuple[int, ...] = field(default=(10, 20, 40, 60, 80), converter=_several, validator=_each_a_step)
    window: int = _steps(200)
    alpha: float = field(default=0.1, validator=ge(0.0))
    ridge: float = field(default=1.0, validator=gt(0.0))

    def build(self, context: PhasePolicyContext) -> PhasePolicy:
        from mapping_plugin_phases._bandit import BanditPolicy

        return BanditPolicy(self)


@define(frozen=True, kw_only=True)
class Sampled(PhasePolicyConfig):
    """Backward passes for a share `keep` of each batch, chosen by importance, where that was measured to pay.

    After `warmup` steps, `measure` ordinary ones and as many sampled ones are timed. Sampling goes on for `recheck`
    steps if ``keep * gain * ordinary seconds > margin * sampled seconds``: `gain` is
    min(1 + CV^2, 1 / keep) for the coefficient of variation CV of the scores, so that keep * gain is the share of
    a whole batch that the chosen samples are worth. Otherwise as many ordinary steps follow; then it is measured again.
    """

    name = "sampled"
    keep: float = field(default=0.5, validator=and_(gt(0.0), lt(1.0)))
    margin: float = field(default=1.15, validator=gt(0.0))
    warmup: int = _steps(40)
    measure: int = _steps(20, least=3)
    recheck: int = _steps(200)

    def build(self, context: PhasePolicyContext) -> PhasePolicy:
        from mapping_plugin_phases._sampled import SampledPolicy

        return SampledPolicy(self)


@hookimpl
def mapping_phase_policies() -> list[type[PhasePolicyConfig]]:
    return [Adaptive, Bandit, Fixed, Sampled]
