"""The engine: Fabric's devices and samplers under the training loop."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from lightning_fabric import Fabric
from torch.utils.data import DataLoader, Sampler, TensorDataset

from mapping_core.training.batches import Batch
from mapping_core.training.engine import loader_length
from mapping_core.training.randomness import seed_everything
from tests import targets
from tests.targets import trainer_of


class Turning(Sampler[int]):
    """Begins one item further in every epoch, and keeps the epochs it was told."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.epochs: list[int] = []

    def __iter__(self) -> Iterator[int]:
        return iter([(self.epochs[-1] + index) % self.count for index in range(self.count)])

    def __len__(self) -> int:
        return self.count

    def set_epoch(self, epoch: int) -> None:
        """Take the epoch."""
        self.epochs.append(epoch)


def test_samplers_are_told_the_epoch() -> None:
    """A sampler with `set_epoch` gets the epoch itself, in order, and from 0 again when `fit` starts again."""
    sampler = Turning(24)
    loader = DataLoader(TensorDataset(*targets.rows()), batch_size=8, sampler=sampler)
    trainer = trainer_of(None, loader, max_epochs=3)
    trainer.fit()
    trainer.fit()
    assert sampler.epochs == [0, 1, 2, 0, 1, 2]


def test_a_fabric_of_ones_own() -> None:
    """A given Fabric is used as it is, with its precision, and the run is that of the same settings."""
    own = Fabric(accelerator="cpu", devices=1, precision="bf16-mixed")
    losses = trainer_of(fabric=own).fit()["train_loss"]
    assert losses == trainer_of(precision="bf16-mixed").fit()["train_loss"]
    assert losses != trainer_of().fit()["train_loss"]


def test_nested_batches_reach_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """A nest of mappings and sequences goes through Fabric's move to the device before anything reads it."""
    batch = {"x": torch.ones(2, 6), "deep": [{"b": (torch.zeros(1), "text")}], "y": torch.tensor([0, 1])}
    fabric = Fabric(accelerator="cpu", devices=1)
    to_device = fabric.to_device

    def marked(thing: Any) -> Any:
        moved = to_device(thing)
        return {**moved, "moved": True} if isinstance(moved, dict) else moved

    monkeypatch.setattr(fabric, "to_device", marked)
    seen: list[Any] = []

    def adapt(given: Any) -> Batch:
        seen.append(given)
        return Batch((given["x"],), {}, given["y"])

    trainer_of(None, [batch], [batch], batch_adapter=adapt, max_epochs=1, fabric=fabric).fit()
    assert [each["moved"] for each in seen] == [True, True]
    assert seen[0]["deep"][0]["b"][1] == "text"


def test_loader_length() -> None:
    """A length is what `len` says, and None where there is none."""
    assert loader_length([1, 2]) == 2
    assert loader_length(iter([1, 2])) is None


def test_seed_everything() -> None:
    """A seed sets Python's, NumPy's and torch's generators, large ones too; None sets none."""
    import random

    import numpy

    def draw() -> tuple[float, float, float]:
        return random.random(), float(numpy.random.rand()), torch.rand(()).item()  # noqa: S311

    for seed in (0, 2**40, 2**64 - 1):
        seed_everything(seed)
        first = draw()
        seed_everything(seed)
        assert draw() == first
        seed_everything(None)
        assert not set(draw()) & set(first)
