"""P9: the seed. Source: packages whose seed reaches the weights but not the order of samples, or not dropout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import nn

from mapping_core import MappingModel
from tests import targets
from tests.processes import in_a_process


def losses(seed: int) -> list[float]:
    """Losses of a run with shuffling, dropout and a validation."""
    torch.manual_seed(0)
    model = MappingModel(nn.Sequential(*targets.mlp(), nn.Dropout(0.2)), 16)
    made = targets.trainer_of(model, targets.loader(shuffle=True), targets.loader(), seed=seed)
    history = made.fit()
    return history["train_loss"] + history["val_loss"]


def elsewhere(folder: Path) -> list[Any]:
    """The same in another process, with the order of hashes that it has."""
    return [losses(7), losses(2**64 - 1)]


def test_the_same_twice_and_in_another_process(tmp_path: Path) -> None:
    """seed=7 gives the same losses twice in a process and in another one; another seed gives others."""
    first = losses(7)
    torch.rand(3)
    assert losses(7) == first
    assert losses(8) != first
    assert in_a_process("tests.cases.test_p09:elsewhere", tmp_path) == json.loads(
        json.dumps([first, losses(2**64 - 1)])
    )
