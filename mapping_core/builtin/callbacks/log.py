"""The structured log."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mapping_core.interfaces.callback import Callback
from mapping_core.logs import get_logger

if TYPE_CHECKING:
    from mapping_core.interfaces.phase_policy import Phase
    from mapping_core.training.history import EpochRecord
    from mapping_core.training.trainer import MappingTrainer


class LogCallback(Callback):
    """Events for start, epochs, changes of phase, checkpoints and the end, also by an error; on the first rank."""

    def __init__(self, run_dir: Path | None) -> None:
        self._path = None if run_dir is None else run_dir / "log.jsonl"
        self._logger = get_logger()

    def on_fit_start(self, trainer: MappingTrainer) -> None:
        trainable = sum(p.numel() for p in trainer.model.parameters() if p.requires_grad)
        self._write(
            trainer, "fit_start", model=type(trainer.model).__name__, trainable=trainable, seed=trainer.config.seed
        )

    def on_epoch_end(self, trainer: MappingTrainer, record: EpochRecord) -> None:
        self._write(
            trainer,
            "epoch",
            epoch=record.epoch,
            step=record.step,
            learning_rate=record.learning_rate,
            seconds=round(record.seconds, 3),
            **record.metrics(),
        )

    def on_phase_change(self, trainer: MappingTrainer, phase: Phase) -> None:
        self._write(trainer, "phase", step=trainer.step, phase=phase.value)

    def on_checkpoint(self, trainer: MappingTrainer, path: Path) -> None:
        self._write(trainer, "checkpoint", step=trainer.step, path=str(path))

    def on_fit_end(self, trainer: MappingTrainer) -> None:
        self._write(trainer, "fit_end", step=trainer.step, reason=trainer.history.stop_reason)

    def on_exception(self, trainer: MappingTrainer, error: BaseException) -> None:
        self._write(trainer, "exception", step=trainer.step, error=type(error).__name__, message=str(error))

    def _write(self, trainer: MappingTrainer, event: str, **values: Any) -> None:
        if not trainer.is_first_rank:
            return
        self._logger.info(event, **values)
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a", encoding="utf-8") as file:
                # JSON has no word for NaN and infinity.
                known = {name: None if _is_unbounded(value) else value for name, value in values.items()}
                file.write(json.dumps({"event": event, "time": time.time(), **known}, allow_nan=False) + "\n")


def _is_unbounded(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)
