"""Early stopping."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from mapping_core.builtin.callbacks.monitored import check_monitor, monitored
from mapping_core.interfaces.callback import Callback

if TYPE_CHECKING:
    from mapping_core.builtin.callbacks import EarlyStopping
    from mapping_core.training.history import EpochRecord
    from mapping_core.training.trainer import MappingTrainer


class EarlyStoppingCallback(Callback):
    """Counts epochs without improvement; a NaN is never an improvement."""

    def __init__(self, config: EarlyStopping) -> None:
        self.config = config
        self.best: float | None = None
        self.bad_epochs = 0
        self._trainer: MappingTrainer | None = None

    @property
    def state_key(self) -> str:
        return f"EarlyStopping({self.config.monitor})"

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "bad_epochs": self.bad_epochs}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.best, self.bad_epochs = state["best"], state["bad_epochs"]
        self._stop_if_due()  # a run that was stopped stays so when it is resumed, unless patience is greater now

    def on_fit_start(self, trainer: MappingTrainer) -> None:
        check_monitor(trainer, self.config.monitor, "early_stopping")
        self.best, self.bad_epochs, self._trainer = None, 0, trainer

    def on_epoch_end(self, trainer: MappingTrainer, record: EpochRecord) -> None:
        value = monitored(record, self.config.monitor, "early_stopping")
        if self._improves(value):
            self.best, self.bad_epochs = value, 0
            return
        self.bad_epochs += 1
        self._stop_if_due()

    def _stop_if_due(self) -> None:
        if self._trainer is not None and self.bad_epochs >= self.config.patience:
            self._trainer.stop(
                f"early stopping: {self.config.monitor} has not improved on {self.best} for {self.bad_epochs} epochs"
            )

    def _improves(self, value: float) -> bool:
        if math.isnan(value):
            return False
        if self.best is None:
            return True
        gain = self.best - value if self.config.mode == "min" else value - self.best
        return gain > self.config.min_delta
