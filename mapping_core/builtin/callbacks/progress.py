"""The progress display."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from mapping_core.interfaces.callback import Callback

if TYPE_CHECKING:
    from mapping_core.training.history import EpochRecord, StepRecord
    from mapping_core.training.trainer import MappingTrainer


_SECONDS_BETWEEN_UPDATES = 0.1


class RateColumn(ProgressColumn):
    """Steps a second, over the last half minute."""

    def render(self, task: Task) -> Text:
        """The rate, nothing before it is known."""
        rate = task.finished_speed or task.speed
        return Text("" if rate is None else f"{rate:.1f} steps/s")


class ProgressCallback(Callback):
    """A bar of steps on a terminal; a line an epoch either way; on the first rank alone.

    Rate and time left count from where this process began, not from the run's first step.
    """

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._first_step, self._started, self._next_update = 0, 0.0, 0.0

    def on_fit_start(self, trainer: MappingTrainer) -> None:
        self._first_step, self._started = trainer.step, time.perf_counter()
        if not (self._console.is_terminal and trainer.is_first_rank):
            return
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            RateColumn(),
            TimeRemainingColumn(),
            console=self._console,
            transient=True,
        )
        self._bar.start()
        self._task = self._bar.add_task("training", total=trainer.total_steps, completed=trainer.step)

    def on_batch_end(self, trainer: MappingTrainer, record: StepRecord) -> None:
        # A bar is drawn ten times a second; telling it of each step would cost more than all else that is done for one.
        if self._bar is None or self._task is None or time.perf_counter() < self._next_update:
            return
        self._next_update = time.perf_counter() + _SECONDS_BETWEEN_UPDATES
        self._bar.update(self._task, completed=record.step, description=f"epoch {record.epoch + 1}")

    def on_epoch_end(self, trainer: MappingTrainer, record: EpochRecord) -> None:
        if not trainer.is_first_rank:
            return
        values = "  ".join(f"{name} {value:.4f}" for name, value in record.metrics().items())
        jumps = trainer.history.prediction
        if jumps.probed:
            values += f"  jumps {jumps.accepted} of {jumps.probed} kept"
        self._console.print(
            f"epoch {record.epoch + 1}/{trainer.config.max_epochs}  {values}  ({self._times(trainer, record)})",
            highlight=False,
            soft_wrap=True,
        )

    def _times(self, trainer: MappingTrainer, record: EpochRecord) -> str:
        """The epoch's time, steps a second since this process began, validation included, and the time left at that."""
        rate = (record.step - self._first_step) / max(time.perf_counter() - self._started, 1e-9)
        times, total = f"{record.seconds:.1f} s, {rate:.1f} steps/s", trainer.total_steps
        if total is None or not rate or record.step >= total:
            return times
        return f"{times}, {_span((total - record.step) / rate)} left"

    def on_fit_end(self, trainer: MappingTrainer) -> None:
        self._close()

    def on_exception(self, trainer: MappingTrainer, error: BaseException) -> None:
        self._close()

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def _span(seconds: float) -> str:
    """A time as one reads it: ``42 s``, ``3 min``, ``2 h 05 min``."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60:02d} min"
