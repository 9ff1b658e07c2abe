"""The TensorBoard logger."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from lightning_fabric.loggers.tensorboard import TensorBoardLogger

from mapping_core.builtin.callbacks.metrics import MetricsCallback

if TYPE_CHECKING:
    from mapping_core.training.trainer import MappingTrainer


class TensorBoardCallback(MetricsCallback):
    """Event files of a run's values; what a run that goes on repeats takes the place of what was there."""

    def __init__(self, every: int, run_dir: Path) -> None:
        super().__init__(every)
        self._run_dir = run_dir

    def open(self, trainer: MappingTrainer) -> TensorBoardLogger:
        """A logger to a further event file of the run's folder."""
        # TensorBoard hides what earlier files in the folder have from this step on.
        return TensorBoardLogger(self._run_dir, name="", version="tensorboard", purge_step=trainer.step + 1)
