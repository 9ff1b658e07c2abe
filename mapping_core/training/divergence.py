"""Whether a run is diverging: signals from what a step reports anyway, their level, and what to do."""

from __future__ import annotations

import math
import statistics
from collections import deque
from enum import Enum, IntEnum
from itertools import pairwise
from typing import Any

from attrs import define, field
from attrs.validators import ge, gt


class DivergenceSignal(Enum):
    """What one step can show, by the quantity that shows it."""

    NON_FINITE = "non_finite"
    LOSS = "loss"
    GRADIENT_HIGH = "gradient_high"
    GRADIENT_LOW = "gradient_low"
    PREDICTION_ERROR = "prediction_error"
    OSCILLATION = "oscillation"


class DivergenceLevel(IntEnum):
    """How bad it is; the signals' worst."""

    NORMAL = 0
    CAUTION = 1
    WARNING = 2
    CRITICAL = 3


class RecoveryAction(Enum):
    """What can be done, from the mildest on."""

    CONTINUE = "continue"
    SHORTEN_PREDICTION = "shorten_prediction"
    FORCE_FULL = "force_full"
    SKIP_BATCH = "skip_batch"
    REDUCE_LEARNING_RATE = "reduce_learning_rate"
    ROLL_BACK = "roll_back"
    ABORT = "abort"


@define(frozen=True, kw_only=True)
class Thresholds:
    """When a value becomes a signal.

    `warmup` steps make the baselines, and show nothing but what is not finite. Losses are compared in
    standard deviations of a batch's loss: `loss_sigmas` away is a CAUTION, and a WARNING where the
    mean of the last `window` is. `gradient_high` and `gradient_low` are factors of the baseline's median norm.
    `prediction_error` is the distance of the predicted displacement from the real one, relative to
    the real one: 1 is what predicting no movement has. The loss oscillates if of the last `window`
    changes a part of `oscillation` or more turns back, each by more than `loss_sigmas` deviations.

    The factors for gradients and the 3 deviations are those of the predictive trainer that
    `docs/prediction.md` describes.
    """

    warmup: int = field(default=100, validator=ge(2))
    window: int = field(default=16, validator=ge(4))
    loss_sigmas: float = field(default=3.0, validator=gt(0.0))
    gradient_high: float = field(default=100.0, validator=gt(1.0))
    gradient_low: float = field(default=0.01, validator=[gt(0.0)])
    prediction_error: float = field(default=1.5, validator=gt(0.0))
    oscillation: float = field(default=0.8, validator=gt(0.0))


@define(frozen=True, kw_only=True)
class DivergenceReport:
    """What a step showed: its signals, each with its level, and the action that answers the worst."""

    step: int
    signals: dict[DivergenceSignal, DivergenceLevel]
    action: RecoveryAction

    @property
    def level(self) -> DivergenceLevel:
        """The worst signal's."""
        return max(self.signals.values(), default=DivergenceLevel.NORMAL)


#: What answers a level, from the first attempt on.
_LADDERS: dict[DivergenceLevel, tuple[RecoveryAction, ...]] = {
    DivergenceLevel.CAUTION: (RecoveryAction.SHORTEN_PREDICTION, RecoveryAction.FORCE_FULL),
    DivergenceLevel.WARNING: (
        RecoveryAction.FORCE_FULL,
        RecoveryAction.REDUCE_LEARNING_RATE,
        RecoveryAction.ROLL_BACK,
        RecoveryAction.ABORT,
    ),
    DivergenceLevel.CRITICAL: (
        RecoveryAction.SKIP_BATCH,
        RecoveryAction.REDUCE_LEARNING_RATE,
        RecoveryAction.ROLL_BACK,
        RecoveryAction.ABORT,
    ),
}


class DivergenceMonitor:
    """Watches loss, gradient norm and prediction error, step by step.

    The baseline of the loss follows the run (an exponential average over `4 * warmup` steps after
    the first `warmup`), for a loss falls while all is well; steps that show a signal of their own do not move it.
    That of the gradient's norm is the median of the last `warmup` good steps.

    An action has `window` steps to work; a signal that is still there is then answered by the next stronger
    one, and as many steps without any begin anew with the mildest.

    >>> monitor = DivergenceMonitor(Thresholds(warmup=4, window=4))
    >>> for step in range(8):
    ...     report = monitor.observe(step=step, loss=1.0 + 0.1 * (step % 2), gradient_norm=1.0)
    >>> report.level.name, report.action.name
    ('NORMAL', 'CONTINUE')
    >>> monitor.observe(step=8, loss=float("nan"), gradient_norm=1.0).action
    <RecoveryAction.SKIP_BATCH: 'skip_batch'>
    """

    def __init__(self, thresholds: Thresholds | None = None) -> None:
        self.thresholds = thresholds or Thresholds()
        self._losses: deque[float] = deque(maxlen=self.thresholds.window + 1)
        self._norms: deque[float] = deque(maxlen=self.thresholds.warmup)
        self._count = 0
        self._mean = 0.0
        self._variance = 0.0
        self._rung = 0  # of the ladder: 0 before the first action
        self._since = 0  # steps since the last action
        self._quiet = 0  # steps since the last signal

    def observe(
        self, *, step: int, loss: float, gradient_norm: float | None = None, prediction_error: float | None = None
    ) -> DivergenceReport:
        """Take note of a step, and return what it shows.

        `gradient_norm` is None where no step was made; `prediction_error` None where nothing was predicted, which is
        not the same as 0, the error of a perfect prediction.
        """
        signals: dict[DivergenceSignal, DivergenceLevel] = {}
        if not math.isfinite(loss) or not math.isfinite(gradient_norm or 0.0):
            signals[DivergenceSignal.NON_FINITE] = DivergenceLevel.CRITICAL
        else:
            self._losses.append(loss)
            if self._count >= self.thresholds.warmup:
                self._compare(signals, loss, gradient_norm)
            if DivergenceSignal.LOSS not in signals:
                self._learn(loss)
            if gradient_norm is not None and not {DivergenceSignal.GRADIENT_HIGH, DivergenceSignal.GRADIENT_LOW} & {
                *signals
            }:
                self._norms.append(gradient_norm)
        if prediction_error is not None and not prediction_error <= self.thresholds.prediction_error:
            signals[DivergenceSignal.PREDICTION_ERROR] = DivergenceLevel.CAUTION
        return DivergenceReport(step=step, signals=signals, action=self._answer(signals))

    def _compare(
        self, signals: dict[DivergenceSignal, DivergenceLevel], loss: float, gradient_norm: float | None
    ) -> None:
        limits, deviation = self.thresholds, math.sqrt(self._variance)
        recent = list(self._losses)[-limits.window :]
        # A loss that falls is no divergence, however fast.
        if statistics.fmean(recent) - self._mean > limits.loss_sigmas * deviation:
            signals[DivergenceSignal.LOSS] = DivergenceLevel.WARNING
        elif loss - self._mean > limits.loss_sigmas * deviation:
            signals[DivergenceSignal.LOSS] = DivergenceLevel.CAUTION
        if self._turns(limits.loss_sigmas * deviation) >= limits.oscillation:
            signals[DivergenceSignal.OSCILLATION] = DivergenceLevel.WARNING
        if gradient_norm is None or not self._norms:
            return
        usual = statistics.median(self._norms)
        if gradient_norm > limits.gradient_high * usual:
            signals[DivergenceSignal.GRADIENT_HIGH] = DivergenceLevel.CRITICAL
        elif gradient_norm < limits.gradient_low * usual:
            signals[DivergenceSignal.GRADIENT_LOW] = DivergenceLevel.CAUTION

    def _turns(self, least: float) -> float:
        """The part of the window's inner losses that lie above both neighbours, or below both, by more than `least`."""
        losses = list(self._losses)
        if len(losses) <= self.thresholds.window:
            return 0.0
        changes = [after - before for before, after in pairwise(losses)]
        turns = [before * after < 0.0 and min(abs(before), abs(after)) > least for before, after in pairwise(changes)]
        return sum(turns) / len(turns)

    def _learn(self, loss: float) -> None:
        """Mean and variance: of all steps at first, then with a memory."""
        self._count += 1
        share = max(1.0 / self._count, 0.25 / self.thresholds.warmup)
        away = loss - self._mean
        self._mean += share * away
        self._variance = (1.0 - share) * (self._variance + share * away * away)

    def _answer(self, signals: dict[DivergenceSignal, DivergenceLevel]) -> RecoveryAction:
        """The action that suits the level; a stronger one where the last, `window` steps ago, did not help."""
        level = max(signals.values(), default=DivergenceLevel.NORMAL)
        self._since += 1
        if level is DivergenceLevel.NORMAL:
            self._quiet += 1
            if self._quiet >= self.thresholds.window:
                self._rung = 0
            return RecoveryAction.CONTINUE
        self._quiet = 0
        if self._rung and self._since < self.thresholds.window:
            # A step that must not be made can be left out at once; anything else gets its time to work.
            lost = level is DivergenceLevel.CRITICAL
            return RecoveryAction.SKIP_BATCH if lost else RecoveryAction.CONTINUE
        ladder = _LADDERS[level]
        self._rung, self._since = min(self._rung + 1, len(ladder)), 0
        return ladder[self._rung - 1]

    def state_dict(self) -> dict[str, Any]:
        """All that `load_state_dict` needs to go on alike."""
        return {
            "losses": list(self._losses),
            "norms": list(self._norms),
            "count": self._count,
            "mean": self._mean,
            "variance": self._variance,
            "rung": self._rung,
            "since": self._since,
            "quiet": self._quiet,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a `state_dict` of a monitor with the same thresholds."""
        self._losses = deque(state["losses"], maxlen=self.thresholds.window + 1)
        self._norms = deque(state["norms"], maxlen=self.thresholds.warmup)
        self._count, self._mean, self._variance = state["count"], state["mean"], state["variance"]
        self._rung, self._since, self._quiet = state["rung"], state["since"], state["quiet"]
