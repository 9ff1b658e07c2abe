"""The engine: Fabric's devices and samplers under the training loop."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from lightning_fabric import Fabric
from torch.utils.data import DataLoader, Sampler, TensorDataset

from mapping_core import TrainerConfig
from mapping_core.training.engine import Engine, loader_length, seed_everything
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


def test_an_epoch_in_the_middle() -> None:
    """Batches asked for epoch 5 are those of epoch 5, however often the loader was used before."""
    data = torch.arange(6)
    loader = DataLoader(TensorDataset(data), batch_size=6, sampler=Turning(6))
    engine = Engine.start(TrainerConfig(accelerator="cpu"), None, targets.mlp())
    ((first,),) = engine.batches(loader, 5)
    ((again,),) = engine.batches(loader, 5)
    assert first.tolist() == again.tolist() == [5, 0, 1, 2, 3, 4]


def test_a_fabric_of_ones_own() -> None:
    """A given Fabric is used as it is, with its precision, and the run is that of the same settings."""
    own = Fabric(accelerator="cpu", devices=1, precision="bf16-mixed")
    losses = trainer_of(fabric=own).fit()["train_loss"]
    assert losses == trainer_of(precision="bf16-mixed").fit()["train_loss"]
    assert losses != trainer_of().fit()["train_loss"]


def test_nested_batches_reach_the_device() -> None:
    """Every tensor in a nest of mappings and sequences is moved; what is no tensor stays."""
    engine = Engine.start(TrainerConfig(accelerator="cpu"), None, targets.mlp())
    nest = {"a": [torch.ones(2), {"b": (torch.zeros(1), "text")}]}
    (made,) = engine.batches([nest], 0)
    assert made["a"][1]["b"][1] == "text"
    assert made["a"][1]["b"][0].device == engine.fabric.device


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
