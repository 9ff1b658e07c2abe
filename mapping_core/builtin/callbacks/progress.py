"""The progress display."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from mapping_core.interfaces.callback import Callback

if TYPE_CHECKING:
    from mapping_core.training.history import EpochRecord, StepRecord
    from mapping_core.training.trainer import MappingTrainer


class ProgressCallback(Callback):
    """A bar of steps on a terminal; a line an epoch either way."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)
        self._bar: Progress | None = None
        self._task: TaskID | None = None

    def on_fit_start(self, trainer: MappingTrainer) -> None:
        if not self._console.is_terminal:
            return
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=self._console,
            transient=True,
        )
        self._bar.start()
        self._task = self._bar.add_task("training", total=trainer.total_steps)

    def on_batch_end(self, trainer: MappingTrainer, record: StepRecord) -> None:
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=record.step, description=f"epoch {record.epoch + 1}")

    def on_epoch_end(self, trainer: MappingTrainer, record: EpochRecord) -> None:
        values = "  ".join(f"{name} {value:.4f}" for name, value in record.metrics().items())
        self._console.print(
            f"epoch {record.epoch + 1}/{trainer.config.max_epochs}  {values}  ({record.seconds:.1f} s)",
            highlight=False,
            soft_wrap=True,
        )

    def on_fit_end(self, trainer: MappingTrainer) -> None:
        self._close()

    def on_exception(self, trainer: MappingTrainer, error: BaseException) -> None:
        self._close()

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
