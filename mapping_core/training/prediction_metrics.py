"""What predicting came to in a run, or a part of it: only what was measured."""

from __future__ import annotations

from collections.abc import Iterable

from attrs import define

from mapping_core.interfaces.phase_policy import PhaseOutcome, Verdict


@define(frozen=True, kw_only=True)
class PredictionMetrics:
    """Jumps that were probed and that stayed, and means over those that say a thing; None where none does.

    `acceptance_rate` is accepted over probed; `forecast_error` the mean distance of forecast and measured loss;
    `prediction_error` and `cosine` compare displacements (`PhaseOutcome`), as means over CORRECT phases;
    `overhead_seconds` is what jumps took for proposing and probing.

    >>> from attrs import evolve
    >>> from mapping_core.interfaces.phase_policy import JumpOutcome, Phase
    >>> kept = JumpOutcome(verdict=Verdict.ACCEPTED, seconds=0.5, after=0.4, forecast=0.5)
    >>> waits = JumpOutcome(verdict=Verdict.WAITING)
    >>> phase = PhaseOutcome(phase=Phase.PREDICT, steps=0, loss=None, seconds=0.5)
    >>> metrics = PredictionMetrics.of([evolve(phase, jump=kept), evolve(phase, jump=waits)])
    >>> metrics.probed, metrics.acceptance_rate, round(metrics.forecast_error, 3), metrics.cosine
    (1, 1.0, 0.1, None)
    """

    probed: int
    accepted: int
    acceptance_rate: float | None
    forecast_error: float | None
    prediction_error: float | None
    cosine: float | None
    overhead_seconds: float

    @classmethod
    def of(cls, outcomes: Iterable[PhaseOutcome]) -> PredictionMetrics:
        """Those of some phases; a jump that was taken back counts as probed and not as accepted."""
        outcomes = list(outcomes)
        jumps = [each.jump for each in outcomes if each.jump is not None]
        probed = [jump for jump in jumps if jump.probed]
        accepted = sum(jump.verdict is Verdict.ACCEPTED for jump in probed)
        return cls(
            probed=len(probed),
            accepted=accepted,
            acceptance_rate=accepted / len(probed) if probed else None,
            forecast_error=_mean(abs(each.forecast_error) for each in jumps if each.forecast_error is not None),
            prediction_error=_mean(each.prediction_error for each in outcomes if each.prediction_error is not None),
            cosine=_mean(each.cosine for each in outcomes if each.cosine is not None),
            overhead_seconds=sum(jump.seconds for jump in jumps),
        )


def _mean(values: Iterable[float]) -> float | None:
    known = list(values)
    return sum(known) / len(known) if known else None
