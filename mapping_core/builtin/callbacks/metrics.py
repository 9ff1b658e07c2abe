"""What the loggers have in common: which values a run gives to a logger of lightning-fabric, and when."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

from mapping_core.interfaces.callback import Callback

if TYPE_CHECKING:
    from lightning_fabric.loggers.logger import Logger

    from mapping_core.training.history import EpochRecord, StepRecord
    from mapping_core.training.trainer import MappingTrainer


class MetricsCallback(Callback):
    """Logs an epoch's values at its end, and each `every` optimiser steps loss, rate and gradient norm."""

    def __init__(self, every: int) -> None:
        self._every = every
        self._logger: Logger | None = None

    @abstractmethod
    def open(self, trainer: MappingTrainer) -> Logger:
        """The logger of a run that is about to start, or to go on after `trainer.step` steps."""

    def on_fit_start(self, trainer: MappingTrainer) -> None:
        self._logger = self.open(trainer) if trainer.is_first_rank else None

    def on_batch_end(self, trainer: MappingTrainer, record: StepRecord) -> None:
        if self._logger is not None and record.stepped and record.step % self._every == 0:
            values = {
                "loss": float(record.loss),
                "learning_rate": record.learning_rate,
                "gradient_norm": record.gradient_norm,
            }
            self._logger.log_metrics(values, record.step)

    def on_epoch_end(self, trainer: MappingTrainer, record: EpochRecord) -> None:
        if self._logger is not None:
            values = {"epoch": record.epoch, "seconds": record.seconds, **record.metrics()}
            self._logger.log_metrics(values, record.step)
            self._logger.save()

    def on_fit_end(self, trainer: MappingTrainer) -> None:
        self._close("success")

    def on_exception(self, trainer: MappingTrainer, error: BaseException) -> None:
        self._close("failed")

    def _close(self, status: str) -> None:
        if self._logger is not None:
            self._logger.finalize(status)
            self._logger = None
