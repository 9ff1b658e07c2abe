"""What a run does about divergence: the monitor's action, carried out."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from mapping_core.errors import DivergenceError
from mapping_core.logs import get_logger
from mapping_core.training.checkpoint import set_aside
from mapping_core.training.divergence import (
    DivergenceLevel,
    DivergenceMonitor,
    DivergenceReport,
    RecoveryAction,
    Thresholds,
)
from mapping_core.training.snapshot import Snapshot

if TYPE_CHECKING:
    from mapping_core.training.loop import Loop

#: What the learning rate is multiplied by to reduce it.
REDUCTION = 0.5
_LAST = (RecoveryAction.ROLL_BACK, RecoveryAction.ABORT)


class Recovery:
    """Shows the monitor each step before it is made, and does what it answers.

    Losses and norms are those all ranks agreed on, so all ranks do the same. What a rollback goes back to is copied
    after every `window` steps without a signal; the learning rate then stays as it has become, and the data goes
    on with the next batch. While a jump is still being corrected, a rollback undoes that jump.
    """

    def __init__(self, loop: Loop, thresholds: Thresholds) -> None:
        self._loop, self._window = loop, thresholds.window
        self._monitor = DivergenceMonitor(thresholds)
        self._kept: Snapshot | None = None
        self._quiet = 0  # steps without a signal since the copy, or the last signal
        self._lost: DivergenceReport | None = None  # why the run is to be aborted

    def begin_window(self) -> None:
        """Between two steps: copy, if it is time to."""
        predictor = self._loop.predictor
        if self._kept is None or (self._quiet >= self._window and (predictor is None or predictor.settled)):
            self._kept, self._quiet = Snapshot.of(self._loop), 0

    def allows(self, loss: float, norm: float) -> bool:
        """Watch the step that is about to be made and act; false if it must not be made."""
        predictor = self._loop.predictor
        error = None if predictor is None else predictor.correction.take_error()
        report = self._watch(loss, norm, error)
        made = report.level < DivergenceLevel.CRITICAL and report.action not in _LAST
        if not made:
            self._loop.leave_out()
        self._act(report)
        return made

    def refused(self) -> None:
        """Act on a window whose loss or gradient is not finite, which makes no step whatever the answer is."""
        self._act(self._watch(math.nan, None, None))

    def end_window(self) -> None:
        """After the callbacks: abort, if that was the answer, with a checkpoint of the last good state."""
        if self._lost is None:
            return
        loop, trainer, run_dir = self._loop, self._loop.trainer, self._loop.trainer.config.run_dir
        step, signals = trainer.step, ", ".join(each.value for each in self._lost.signals)
        self._roll_back()
        if run_dir is not None and loop.fabric.is_global_zero:
            set_aside(run_dir, after=trainer.step)
        loop.save()
        kept = f"a checkpoint of step {trainer.step} is in {run_dir}" if run_dir else "the model is as it was then"
        raise DivergenceError(
            f"training diverges at step {step} ({signals}), after a lower learning rate and a return to step "
            f"{trainer.step}; {kept}: check the data, or begin with a lower learning_rate"
        )

    def _watch(self, loss: float, norm: float | None, error: float | None) -> DivergenceReport:
        step = self._loop.trainer.step + 1
        report = self._monitor.observe(step=step, loss=loss, gradient_norm=norm, prediction_error=error)
        self._quiet = 0 if report.signals else self._quiet + 1
        if report.action is not RecoveryAction.CONTINUE:
            self._loop.trainer.history.recoveries.append(report)
            signals = {signal.value: level.name for signal, level in report.signals.items()}
            get_logger().warning("divergence", step=step, action=report.action.value, **signals)
        return report

    def _act(self, report: DivergenceReport) -> None:
        loop = self._loop
        match report.action:
            case RecoveryAction.SHORTEN_PREDICTION:
                if loop.predictor is not None:
                    loop.predictor.shorten()
            case RecoveryAction.FORCE_FULL:
                loop.phases.force_full(self._window)
            case RecoveryAction.REDUCE_LEARNING_RATE:
                loop.multiply_rate(REDUCTION)
            case RecoveryAction.ROLL_BACK:
                self._roll_back()
            case RecoveryAction.ABORT:
                self._lost = report

    def _roll_back(self) -> None:
        loop, rate = self._loop, self._loop.rate_factor
        loop.phases.force_full(self._window)
        if loop.predictor is not None and loop.predictor.take_back():
            loop.phases.take_back()
            return
        assert self._kept is not None
        self._kept.restore(loop)
        loop.multiply_rate(rate / loop.rate_factor)

    def state_dict(self) -> dict[str, Any]:
        """What a run goes on from; what a rollback goes back to, on one rank alone."""
        kept = self._kept if self._loop.fabric.world_size == 1 else None
        return {
            "monitor": self._monitor.state_dict(),
            "kept": None if kept is None else kept.state_dict(),
            "quiet": self._quiet,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave."""
        self._monitor.load_state_dict(state["monitor"])
        self._kept = None if state["kept"] is None else Snapshot(**state["kept"])
        self._quiet = state["quiet"]
