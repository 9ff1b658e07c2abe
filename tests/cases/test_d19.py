"""D19: a NaN that stays the best. Source: Lightning issue 2636 (nothing compares less than NaN)."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from mapping_core import MappingModel, MappingTrainer
from mapping_core.builtin.callbacks.early_stopping import EarlyStoppingCallback
from tests import targets


class Scripted:
    """A metric whose values are given, one a validation."""

    def __init__(self, *values: float) -> None:
        self.values = iter(values)

    def reset(self) -> None:
        pass

    def update(self, predictions: Any, targets: Any) -> None:
        pass

    def compute(self) -> float:
        return next(self.values)


def run(folder: Path, *values: float, patience: int = 9) -> MappingTrainer:
    """A run of as many epochs, whose score these are."""
    made = targets.trainer_of(
        MappingModel(targets.mlp(), 16),
        None,
        targets.loader(),
        max_epochs=len(values),
        metrics={"score": Scripted(*values)},
        run_dir=folder,
        callbacks=[
            {"type": "early_stopping", "monitor": "val_score", "patience": patience},
            {"type": "checkpoint", "monitor": "val_score"},
        ],
    )
    made.fit()
    return made


def test_nan_is_not_the_best(tmp_path: Path) -> None:
    """Of NaN, 0.5, 0.4, 0.6 the best is 0.4, for early stopping and for the checkpoint that is kept."""
    made = run(tmp_path, math.nan, 0.5, 0.4, 0.6)
    (stopping,) = (each for each in made.callbacks if isinstance(each, EarlyStoppingCallback))
    assert stopping.best == 0.4
    assert (tmp_path / "checkpoints" / "best").read_text().strip() == "step-00000009"
    resumed = targets.trainer_of(MappingModel(targets.mlp(), 16), run_dir=tmp_path, max_epochs=3)
    resumed.fit(resume="best")
    assert resumed.step == 9


def test_nan_for_ever_stops(tmp_path: Path) -> None:
    """A metric that is NaN in every epoch ends the run when patience has run out, and says so; no epoch is the best."""
    made = run(tmp_path, *[math.nan] * 8, patience=3)
    assert len(made.history) == 3
    assert made.history.stop_reason == "early stopping: val_score has not improved on None for 3 epochs"
    assert not (tmp_path / "checkpoints" / "best").exists()
