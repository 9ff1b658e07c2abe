"""D16: safe loading. Source: transformers issue 34631 (a checkpoint that needs more than `weights_only=True`)."""

from __future__ import annotations

import collections
import enum
import pickle
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import attrs
import numpy
import pytest
import safetensors
import torch
from torch import nn

from mapping_core import Callback, CheckpointError, MappingModel, MappingTrainer
from mapping_core.training.checkpoint import MODEL, STATE, checkpoints_in
from tests import targets

STRATEGIES: list[Any] = [
    {"type": "pruned", "strategy": {"type": "lrd", "rank": 1}},
    {"type": "slvt"},
    {"type": "finetune"},
]


class Stop(Callback):
    """Ends the run after a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_batch_end(self, trainer: MappingTrainer, record: Any) -> None:
        if record.step == self.step:
            trainer.stop("enough")


def full(folder: Path, strategy: Any, stop: int = 0) -> MappingTrainer:
    """Return a run with everything that has a state: masks, learned loss weights, averages, a scaler, patience."""
    torch.manual_seed(0)
    target = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 3))
    model = MappingModel(target, 30, strategy, mapper="hash", trained="4.bias", buffers="tracked")
    callbacks: list[Any] = [
        {"type": "early_stopping", "patience": 9},
        {"type": "ema"},
        {"type": "csv"},
        Stop(stop),
        *([{"type": "pruning", "keep": 0.5, "schedule": "gradual"}] if strategy["type"] == "pruned" else []),
    ]
    return targets.trainer_of(
        model,
        targets.loader(24, batch_size=8, shuffle=True),
        targets.loader(),
        loss={"type": "mapping", "learned": True},
        precision="16-mixed",
        run_dir=folder,
        callbacks=callbacks,
        max_epochs=3,
    )


def refuse(*_: Any, **__: Any) -> Any:
    """What takes the place of everything that can run code while it loads."""
    raise AssertionError("a pickle was read")


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda strategy: strategy["type"])
def test_nothing_is_unpickled(strategy: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With every plugin on, each file is safetensors or text, resuming reads no pickle, and gives the whole run."""
    full(tmp_path / "run", strategy, 5).fit()
    for path in (path for path in (tmp_path / "run").rglob("*") if path.is_file()):
        assert not zipfile.is_zipfile(path)  # as torch.save writes
        if path.suffix == ".safetensors":
            with safetensors.safe_open(path, framework="pt") as file:
                assert list(file.keys())
        else:
            path.read_text(encoding="utf-8")  # which the first byte of a pickle is not
    assert {MODEL, STATE} <= {path.name for path in checkpoints_in(tmp_path / "run")[-1].iterdir()}
    whole = full(tmp_path / "whole", strategy)
    whole.fit()
    resumed = full(tmp_path / "run", strategy)
    with monkeypatch.context() as patch:
        for place, name in ((torch, "load"), (pickle, "load"), (pickle, "loads"), (pickle, "Unpickler")):
            patch.setattr(place, name, refuse)
        resumed.fit(resume="last")
    assert resumed.step == whole.step == 9
    for ours, theirs in ((resumed.model, whole.model), (resumed.loss, whole.loss)):
        expected = theirs.state_dict()
        assert all(torch.equal(tensor, expected[name]) for name, tensor in ours.state_dict().items())
    assert any(parameter.requires_grad for parameter in whole.loss.parameters())


class Colour(enum.Enum):
    RED = 1


class Word(enum.StrEnum):
    YES = "yes"


class Number(float, enum.Enum):
    HALF = 0.5


class Point(NamedTuple):
    x: float
    y: float


@attrs.define
class Pair:
    left: int = 1


#: What a callback's state may not be, and the name of it that the error gives.
NOT_PLAIN: dict[str, tuple[Any, str]] = {
    "Enum": (Colour.RED, "Colour"),
    "an Enum of strings": (Word.YES, "Word"),
    "an Enum of floats": (Number.HALF, "Number"),
    "Path": (Path("a"), "PosixPath"),
    "deque": (collections.deque([1]), "collections.deque"),
    "attrs": (Pair(), "Pair"),
    "array": (numpy.zeros(3), "numpy.ndarray"),
    "set": ({1}, "builtins.set"),
    "named tuple": (Point(1.0, 2.0), "Point"),
    "a key": ({Colour.RED: 1}, "Colour"),
    "a dtype": (torch.float32, "torch.dtype"),
}


@pytest.mark.parametrize("name", list(NOT_PLAIN))
def test_states_that_are_not_plain(name: str, tmp_path: Path) -> None:
    """A callback whose state only a pickle could hold is an error before training, which says where and what."""
    value, what = NOT_PLAIN[name]

    class Fancy(Callback):
        def state_dict(self) -> dict[str, Any]:
            return {"seen": [0, value]}

    made = targets.trainer_of(callbacks=[Fancy()], run_dir=tmp_path)
    with pytest.raises(CheckpointError, match=rf"the state of callback \[.*Fancy'\]\['seen'\]\[1\].* is .*{what}"):
        made.fit()
    assert made.step == 0
    assert not list(tmp_path.rglob("*.safetensors"))
