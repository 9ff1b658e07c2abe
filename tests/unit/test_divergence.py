"""The divergence monitor: each signal by the fault that makes it, and none where all is well."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable

import pytest

from mapping_core.training.divergence import (
    DivergenceLevel,
    DivergenceMonitor,
    DivergenceReport,
    DivergenceSignal,
    RecoveryAction,
    Thresholds,
)

WARMUP, WINDOW = 40, 8
THRESHOLDS = Thresholds(warmup=WARMUP, window=WINDOW)
NAN = float("nan")


def noisy(count: int, *, level: float = 1.0, seed: int = 0) -> list[float]:
    """Return losses around `level`, with a standard deviation of a tenth."""
    draw = random.Random(seed)  # noqa: S311 - noise for a test
    return [level + 0.1 * draw.gauss(0.0, 1.0) for _ in range(count)]


def watched(losses: Iterable[float], monitor: DivergenceMonitor | None = None) -> list[DivergenceReport]:
    """Show a monitor one loss a step, with a gradient of norm 1."""
    monitor = monitor or DivergenceMonitor(THRESHOLDS)
    return [monitor.observe(step=step, loss=loss, gradient_norm=1.0) for step, loss in enumerate(losses)]


def warm() -> DivergenceMonitor:
    """Return a monitor that has its baselines."""
    monitor = DivergenceMonitor(THRESHOLDS)
    watched(noisy(2 * WARMUP), monitor)
    return monitor


@pytest.mark.parametrize("seed", range(5))
def test_a_run_that_goes_well(seed: int) -> None:
    """A loss that falls and levels out, with noise, is never more than a caution, and seldom that."""
    falling = [loss + 3.0 * math.exp(-step / 100) for step, loss in enumerate(noisy(1000, seed=seed))]
    reports = watched(falling)
    assert max(report.level for report in reports) <= DivergenceLevel.CAUTION
    assert sum(report.level > DivergenceLevel.NORMAL for report in reports) < 10


def test_nothing_is_compared_during_warmup() -> None:
    """Without a baseline nothing but what is not finite shows."""
    wild = watched([1.0, 50.0, 0.0, NAN, 1e6])
    assert [report.level for report in wild] == [0, 0, 0, DivergenceLevel.CRITICAL, 0]
    assert wild[3].action is RecoveryAction.SKIP_BATCH


def test_a_loss_that_rises() -> None:
    """One batch far above is a caution; a mean that stays above is a warning, until the loss has come back."""
    monitor = warm()
    first = monitor.observe(step=0, loss=1.6, gradient_norm=1.0)
    assert first.signals == {DivergenceSignal.LOSS: DivergenceLevel.CAUTION}
    assert first.action is RecoveryAction.SHORTEN_PREDICTION
    assert watched([3.0] * WINDOW, monitor)[-1].signals[DivergenceSignal.LOSS] is DivergenceLevel.WARNING
    assert watched(noisy(3 * WINDOW), monitor)[-1].level is DivergenceLevel.NORMAL


@pytest.mark.parametrize(
    ("norm", "signal", "level"),
    [
        (101.0, DivergenceSignal.GRADIENT_HIGH, DivergenceLevel.CRITICAL),
        (0.009, DivergenceSignal.GRADIENT_LOW, DivergenceLevel.CAUTION),
        (99.0, None, DivergenceLevel.NORMAL),
        (0.011, None, DivergenceLevel.NORMAL),
    ],
)
def test_gradients(norm: float, signal: DivergenceSignal | None, level: DivergenceLevel) -> None:
    """A norm beyond 100 times the usual one is critical, below a hundredth a caution."""
    report = warm().observe(step=0, loss=1.0, gradient_norm=norm)
    assert (report.level, list(report.signals)) == (level, [] if signal is None else [signal])


@pytest.mark.parametrize(("loss", "norm"), [(NAN, 1.0), (float("inf"), 1.0), (1.0, NAN), (1.0, float("-inf"))])
def test_what_is_not_finite(loss: float, norm: float) -> None:
    """A loss or a gradient that is not finite is critical, and spoils no baseline."""
    monitor = warm()
    assert monitor.observe(step=0, loss=loss, gradient_norm=norm).signals == {
        DivergenceSignal.NON_FINITE: DivergenceLevel.CRITICAL
    }
    assert monitor.observe(step=1, loss=1.0, gradient_norm=1.0).level is DivergenceLevel.NORMAL


@pytest.mark.parametrize(("error", "shows"), [(None, False), (0.0, False), (1.4, False), (1.6, True), (NAN, True)])
def test_prediction_errors(error: float | None, shows: bool) -> None:
    """A perfect prediction shows nothing, nor does none; one that is farther off than no movement does."""
    report = warm().observe(step=0, loss=1.0, gradient_norm=1.0, prediction_error=error)
    assert (DivergenceSignal.PREDICTION_ERROR in report.signals) is shows


def test_oscillation() -> None:
    """A loss that goes up and down with every step, farther than noise does, is a warning."""
    monitor = warm()
    reports = watched([1.0 + 0.25 * (-1) ** step for step in range(2 * WINDOW)], monitor)
    assert reports[-1].signals == {DivergenceSignal.OSCILLATION: DivergenceLevel.WARNING}


def test_the_ladder() -> None:
    """What is answered in vain gets a stronger answer each time, with time to work between them, up to the end."""
    monitor = warm()
    actions = [report.action for report in watched([9.0] * 6 * WINDOW, monitor)]
    done = [action for action in actions if action is not RecoveryAction.CONTINUE]
    assert done[-1] is RecoveryAction.ABORT
    assert list(dict.fromkeys(done)) == [
        RecoveryAction.FORCE_FULL,
        RecoveryAction.REDUCE_LEARNING_RATE,
        RecoveryAction.ROLL_BACK,
        RecoveryAction.ABORT,
    ]
    assert len(done) == 6


def test_every_batch_that_is_not_finite_is_skipped() -> None:
    """Batches in a row are all skipped, and answered more strongly after a while."""
    actions = [report.action for report in watched([NAN] * (WINDOW + 1), warm())]
    assert actions == [RecoveryAction.SKIP_BATCH] * WINDOW + [RecoveryAction.REDUCE_LEARNING_RATE]


def test_state() -> None:
    """A monitor that takes over a state goes on as the other does."""
    losses = [*noisy(60), *[4.0] * 30, *noisy(60, seed=1)]
    monitor = DivergenceMonitor(THRESHOLDS)
    watched(losses[:75], monitor)
    twin = DivergenceMonitor(THRESHOLDS)
    twin.load_state_dict(monitor.state_dict())
    assert watched(losses[75:], monitor) == watched(losses[75:], twin)
    assert monitor.state_dict() == twin.state_dict()
