"""The CSV logger."""

from __future__ import annotations

import csv
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning_fabric.loggers.csv_logs import CSVLogger

from mapping_core.builtin.callbacks.metrics import MetricsCallback

if TYPE_CHECKING:
    from mapping_core.training.trainer import MappingTrainer

_FOLDER, _FILE = "csv", "metrics.csv"


class CsvCallback(MetricsCallback):
    """One file of a run's values; a run that goes on goes on in it."""

    def __init__(self, every: int, run_dir: Path) -> None:
        super().__init__(every)
        self._run_dir = run_dir

    def open(self, trainer: MappingTrainer) -> CSVLogger:
        """A logger whose file begins with the rows that were there, if the run goes on."""
        earlier = self._set_aside()
        # Every row goes to the disk at once: a checkpoint must not be ahead of it.
        logger = CSVLogger(self._run_dir, name="", version=_FOLDER, flush_logs_every_n_steps=1)
        if earlier is not None and trainer.step:
            for row in _rows_before(trainer, earlier / _FILE):
                # What is logged again as text is written again as it was.
                logger.experiment.log_metrics(row, int(row.pop("step")))
            logger.save()
            shutil.rmtree(earlier)
        return logger

    def _set_aside(self) -> Path | None:
        """Move a file that is there: Fabric's logger would remove it."""
        folder = self._run_dir / _FOLDER
        if not (folder / _FILE).is_file():
            return None
        number = 1
        while (aside := self._run_dir / f"{_FOLDER}-{number:03d}").exists():
            number += 1
        return folder.rename(aside)


def _rows_before(trainer: MappingTrainer, path: Path) -> list[dict[str, Any]]:
    """The rows that the run will not write again: of steps that are done, and of epochs that are over."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = [{name: text for name, text in row.items() if text} for row in csv.DictReader(file)]
    return [
        row
        for row in rows
        if (int(row["epoch"]) < len(trainer.history) if "epoch" in row else int(row["step"]) <= trainer.step)
    ]
