"""Phase policies: when predictive training predicts, and for how long."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from attrs import define, field
from attrs.validators import and_, deep_iterable, ge, gt, instance_of, lt, min_len

from mapping_core import PhasePolicyConfig, hookimpl

if TYPE_CHECKING:
    from mapping_core import PhasePolicy
    from mapping_core.contexts import PhasePolicyContext

__version__ = "0.1.0"
__all__ = ["Fixed", "Sampled", "mapping_phase_policies"]


def _steps(default: int, least: int = 1) -> Any:
    return field(default=default, validator=and_(instance_of(int), ge(least)))


def _horizons(value: Iterable[int]) -> tuple[int, ...]:
    return tuple(value)


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
    horizons: tuple[int, ...] = field(
        default=(10, 20, 40, 80),
        converter=_horizons,
        validator=deep_iterable(and_(instance_of(int), ge(1)), and_(instance_of(tuple), min_len(1))),
    )

    def build(self, context: PhasePolicyContext) -> PhasePolicy:
        from mapping_plugin_phases._fixed import FixedPolicy

        return FixedPolicy(self)


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
    return [Fixed, Sampled]
