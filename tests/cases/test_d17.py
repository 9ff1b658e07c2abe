"""D17: patience. Source: transformers issue 28544 (early stopping counts from 0 after a resume)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mapping_core import Callback, MappingModel, MappingTrainer
from tests import targets


class StopAfter(Callback):
    """Ends the run after so many epochs."""

    def __init__(self, epochs: int) -> None:
        self.epochs = epochs

    def on_epoch_end(self, trainer: MappingTrainer, record: Any) -> None:
        if record.epoch + 1 == self.epochs:
            trainer.stop("enough")


def run(folder: Path, *callbacks: Callback) -> MappingTrainer:
    """A run whose first epoch is its best, by patience 3; an improvement would have to be large."""
    patience = {"type": "early_stopping", "patience": 3, "min_delta": 99.0}
    made = targets.trainer_of(
        MappingModel(targets.mlp(), 16),
        None,
        targets.loader(),
        max_epochs=20,
        run_dir=folder,
        callbacks=[patience, *callbacks],
    )
    made.fit(resume="last")
    return made


def test_patience_goes_on(tmp_path: Path) -> None:
    """Stopped after 2 bad epochs and resumed, it takes 1 more to end; an uninterrupted run has as many."""
    assert len(run(tmp_path / "a", StopAfter(3)).history) == 3
    resumed = run(tmp_path / "a")
    assert resumed.history.stop_reason.startswith("early stopping: val_loss has not improved")
    assert len(resumed.history) == len(run(tmp_path / "b").history) == 4
