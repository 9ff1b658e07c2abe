"""`adaptive`: lengths that follow what was judged of the jumps."""

from __future__ import annotations

from typing import Any

import pytest

from mapping_core import Phase, PhaseDecision, PhaseOutcome
from mapping_core.contexts import PhasePolicyContext
from mapping_core.interfaces.phase_policy import JumpOutcome, Progress, Verdict
from mapping_plugin_phases import Adaptive
from mapping_plugin_phases._adaptive import AdaptivePolicy


def policy(**options: Any) -> AdaptivePolicy:
    """One with these options."""
    built = Adaptive(**options).build(PhasePolicyContext(total_steps=None, seed=0))
    assert isinstance(built, AdaptivePolicy)
    return built


def after(phase: Phase | None) -> Progress:
    """A run whose last phase was this."""
    return Progress(step=0, total_steps=None, phase=phase, loss=1.0)


def judge(adaptive: AdaptivePolicy, verdict: Verdict, **measured: float) -> None:
    """Tell it of a jump."""
    jump = JumpOutcome(verdict=verdict, **measured)  # type: ignore[arg-type]
    adaptive.feedback(PhaseOutcome(phase=Phase.PREDICT, steps=0, loss=None, seconds=0.1, jump=jump))


def test_rejections_make_full_phases_long_and_jumps_short() -> None:
    """After many rejections FULL is the longest and the reach the shortest, and nothing lies outside the ranges."""
    adaptive = policy(full=(10, 160), reach=(4, 64))
    assert adaptive.next(after(Phase.FULL)) == PhaseDecision(Phase.PREDICT, horizons=(8, 16))
    lengths = [adaptive.full]
    for _ in range(30):
        judge(adaptive, Verdict.REJECTED)
        lengths.append(adaptive.full)
    assert lengths == sorted(lengths)
    assert (lengths[0], lengths[-1]) == (40, 160)
    assert adaptive.horizons == (2, 4)
    assert adaptive.next(after(Phase.PREDICT)) == PhaseDecision(Phase.FULL, 160)


def test_jumps_that_are_kept_do_the_opposite() -> None:
    """After many kept jumps FULL is the shortest and the reach the longest; CORRECT follows each."""
    adaptive = policy(full=(10, 160), reach=(4, 64), correct=7)
    for _ in range(30):
        judge(adaptive, Verdict.ACCEPTED)
    assert adaptive.full == 10
    assert adaptive.horizons == (32, 64)
    assert adaptive.next(after(Phase.PREDICT)) == PhaseDecision(Phase.CORRECT, 7)
    assert adaptive.next(after(Phase.CORRECT)) == PhaseDecision(Phase.FULL, 10)


def test_confidence_asks_what_came_of_the_forecast() -> None:
    """A kept jump counts by the share of its error in its change of the loss: half of it where they are as large."""
    for forecast, confidence in ((0.8, 1.0), (0.6, 0.5), (1.4, 0.25)):
        adaptive = policy(weight=1.0)
        judge(adaptive, Verdict.ACCEPTED, before=1.0, after=0.8, forecast=forecast)
        assert adaptive.confidence == pytest.approx(confidence)
    adaptive = policy(weight=1.0)
    judge(adaptive, Verdict.ACCEPTED, before=1.0, after=1.0, forecast=0.5)
    assert adaptive.confidence == 0.0


@pytest.mark.parametrize("verdict", [Verdict.WAITING, Verdict.NO_COMPUTE, Verdict.NO_PROPOSAL])
def test_what_was_not_judged_teaches_nothing(verdict: Verdict) -> None:
    """A jump that was not probed leaves the confidence as it was."""
    adaptive = policy()
    judge(adaptive, verdict)
    adaptive.feedback(PhaseOutcome(phase=Phase.FULL, steps=20, loss=1.0, seconds=1.0))
    assert adaptive.confidence == 0.5


@pytest.mark.parametrize("verdict", [Verdict.NON_FINITE, Verdict.ROLLED_BACK])
def test_what_failed_lowers_it(verdict: Verdict) -> None:
    """A jump to nowhere, and one that was undone, count as rejections."""
    adaptive = policy(weight=0.5)
    judge(adaptive, verdict)
    assert adaptive.confidence == 0.25
    assert adaptive.next(after(Phase.PREDICT)).phase is Phase.FULL


def test_state() -> None:
    """A policy that takes over a state answers as the other does."""
    adaptive, twin = policy(), policy()
    judge(adaptive, Verdict.ACCEPTED, before=1.0, after=0.9, forecast=0.7)
    twin.load_state_dict(adaptive.state_dict())
    for phase in (Phase.FULL, Phase.PREDICT, Phase.CORRECT):
        assert adaptive.next(after(phase)) == twin.next(after(phase))


@pytest.mark.parametrize("lengths", [(20,), (0, 5), (30, 20), (5, 2.5), (1, 2, 3)])
def test_ranges_are_checked(lengths: Any) -> None:
    """A range that is none is refused, with its name."""
    with pytest.raises(ValueError, match="'reach' must be the least and the most"):
        Adaptive(reach=lengths)
