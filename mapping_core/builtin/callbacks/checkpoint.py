"""The checkpoint callback."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mapping_core.builtin.callbacks.monitored import check_monitor, monitored
from mapping_core.interfaces.callback import Callback
from mapping_core.training.checkpoint import checkpoints_in, mark_best, remove_checkpoint, step_of

if TYPE_CHECKING:
    from mapping_core.builtin.callbacks import Checkpoint
    from mapping_core.training.history import EpochRecord, StepRecord
    from mapping_core.training.trainer import MappingTrainer


class CheckpointCallback(Callback):
    """Asks for checkpoints, at each epoch's end and every so many steps; keeps the last ones and the best."""

    def __init__(self, config: Checkpoint, run_dir: Path) -> None:
        self._config = config
        self._run_dir = run_dir
        self._best: float | None = None
        self._best_step = -1

    @property
    def state_key(self) -> str:
        return "Checkpoint"

    def state_dict(self) -> dict[str, Any]:
        return {"best": self._best, "best_step": self._best_step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._best, self._best_step = state["best"], state["best_step"]

    def on_fit_start(self, trainer: MappingTrainer) -> None:
        if self._config.monitor is not None:
            check_monitor(trainer, self._config.monitor, "checkpoint")
        self._best, self._best_step = None, -1

    def on_batch_end(self, trainer: MappingTrainer, record: StepRecord) -> None:
        every = trainer.config.checkpoint_every
        if every is not None and record.stepped and record.step % every == 0:
            trainer.request_checkpoint()

    def on_epoch_end(self, trainer: MappingTrainer, record: EpochRecord) -> None:
        if (value := self._monitored(record)) is not None and self._improves(value):
            self._best, self._best_step = value, record.step
        trainer.request_checkpoint()

    def on_checkpoint(self, trainer: MappingTrainer, path: Path) -> None:
        if not trainer.is_first_rank:
            return
        best = path.with_name(f"step-{self._best_step:08d}")
        if best.is_dir():  # marked each time: a run may have been killed before it was
            mark_best(best)
        *older, _ = checkpoints_in(self._run_dir)
        for each in older[: len(older) + 1 - self._config.keep_last]:
            if step_of(each) != self._best_step:
                remove_checkpoint(each)

    def _monitored(self, record: EpochRecord) -> float | None:
        name = self._config.monitor or ("val_loss" if record.validation else "train_loss")
        value = monitored(record, name, "checkpoint")
        return None if math.isnan(value) else value

    def _improves(self, value: float) -> bool:
        if self._best is None:
            return True
        return value < self._best if self._config.mode == "min" else value > self._best
