"""D18: callbacks of one type. Source: Lightning issue 6467 (the state of the second replaces that of the first)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mapping_core import Callback, ConfigError, MappingModel, MappingTrainer
from mapping_core.builtin.callbacks.early_stopping import EarlyStoppingCallback
from mapping_core.training.checkpoint import STATE, checkpoints_in
from mapping_core.training.state import read_state
from tests import targets


def run(folder: Path, *monitors: str) -> MappingTrainer:
    """Return a trainer with an early stopping for each of these metrics."""
    stopping: list[Any] = [
        {"type": "early_stopping", "monitor": monitor, "patience": 9 - index, "mode": "max"}
        for index, monitor in enumerate(monitors)
    ]
    return targets.trainer_of(
        MappingModel(targets.mlp(), 16), None, targets.loader(), run_dir=folder, callbacks=stopping
    )


def states(made: MappingTrainer) -> list[dict[str, Any]]:
    """What each early stopping remembers."""
    return [each.state_dict() for each in made.callbacks if isinstance(each, EarlyStoppingCallback)]


def test_two_metrics_keep_two_states(tmp_path: Path) -> None:
    """Two of a kind on two metrics: both states are in the checkpoint, and each comes back to its own."""
    first = run(tmp_path, "val_accuracy", "val_loss")
    first.fit()
    saved = read_state(checkpoints_in(tmp_path)[-1] / STATE)["callbacks"]
    assert {"EarlyStopping(val_accuracy)", "EarlyStopping(val_loss)"} <= set(saved)
    assert states(first)[0] != states(first)[1]
    second = run(tmp_path, "val_accuracy", "val_loss")
    second.fit(resume="last")  # there is nothing left to run, so nothing changes what came back
    assert states(second) == states(first)


def test_two_of_one_key_are_refused(tmp_path: Path) -> None:
    """Two of a kind that would save under one key are an error before training."""
    with pytest.raises(ConfigError, match=r"two callbacks have the state_key 'EarlyStopping\(val_loss\)'"):
        run(tmp_path, "val_loss", "val_loss")

    class Twice(Callback):
        pass

    with pytest.raises(ConfigError, match=r"two callbacks have the state_key .*Twice.*give one a state_key of its own"):
        targets.trainer_of(callbacks=[Twice(), Twice()])
