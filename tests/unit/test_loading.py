"""One epoch's batches, from its beginning and from its middle."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, WeightedRandomSampler

from mapping_core.training.loading import epoch_batches
from mapping_core.training.randomness import random_state, seed_everything, set_random_state
from mapping_core.training.sampling import with_own_order


class Counted(Dataset[Tensor]):
    """Samples with noise of all three generators; counts how many were loaded."""

    def __init__(self) -> None:
        self.loaded = 0

    def __len__(self) -> int:
        return 11

    def __getitem__(self, index: int) -> Tensor:
        self.loaded += 1
        return torch.tensor([index, random.gauss(), float(numpy.random.rand()), float(torch.rand(()))])


def own_order(data: Dataset[Any]) -> Any:
    """Return a loader whose order is ours."""
    return with_own_order(DataLoader(data, batch_size=3, shuffle=True), seed=2)


def own_sampler(data: Dataset[Any]) -> Any:
    """Return a loader with a sampler of the user's own."""
    return DataLoader(data, batch_size=3, sampler=WeightedRandomSampler([1.0] * 11, 11))


def draws(loader: Any, epoch: int) -> list[Any]:
    """An epoch in which each batch is followed by draws of a model's."""
    seed_everything(epoch)
    return [(batch.tolist(), torch.rand(1).item()) for batch in loader]


@pytest.mark.parametrize(("make", "loaded"), [(own_order, 5), (own_sampler, 11)])
@pytest.mark.parametrize("epoch", [0, 1])
def test_from_the_middle(make: Callable[[Any], Any], loaded: int, epoch: int) -> None:
    """The rest of an epoch, and what is drawn beside it, are those of the whole one; ours loads nothing else."""
    data = Counted()
    loader = make(data)
    seed_everything(5)
    began_with = random_state(loader)
    whole, kept = [], began_with
    for number, batch in enumerate(epoch_batches(loader, epoch, skip=0, began_with=began_with)):
        whole.append((batch.tolist(), torch.rand(1).item()))
        if number == 1:
            kept = random_state(loader)
    data.loaded = 0
    seed_everything(99)
    set_random_state(kept, loader)
    rest = [
        (batch.tolist(), torch.rand(1).item()) for batch in epoch_batches(loader, epoch, skip=2, began_with=began_with)
    ]
    assert rest == whole[2:]
    assert data.loaded == loaded


def test_skip_is_over_when_the_epoch_is() -> None:
    """The epoch after one that began in its middle is whole, also when that one was left early."""
    for take in (0, 1, 9):
        loader = own_order(Counted())
        batches = epoch_batches(loader, 0, skip=2, began_with=random_state(loader))
        for _ in range(take):
            next(batches, None)
        del batches
        assert len(list(epoch_batches(loader, 1, skip=0, began_with=random_state(loader)))) == 4


def test_a_shorter_loader() -> None:
    """Where a loader has become shorter than what is skipped, nothing is left of the epoch."""
    began_with = random_state()
    assert list(epoch_batches([1, 2], 0, skip=3, began_with=began_with)) == []
