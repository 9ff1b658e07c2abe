"""The order of samples: each index once, the same in every process, and loaders of the user's own left alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from mapping_core.training.sampling import EpochBatches, set_epoch, with_own_order

ranks = st.integers(1, 4)


@given(
    size=st.integers(0, 60),
    batch_size=st.integers(1, 9),
    world_size=ranks,
    shuffle=st.booleans(),
    drop_last=st.booleans(),
    epoch=st.integers(0, 3),
)
def test_each_index_once_over_all_ranks(
    size: int, batch_size: int, world_size: int, shuffle: bool, drop_last: bool, epoch: int
) -> None:
    """The ranks' batches together are those of one process with the larger batch; lengths are what they say."""

    def made(rank: int, world: int, batch: int) -> EpochBatches:
        batches = EpochBatches(
            size, batch_size=batch, shuffle=shuffle, drop_last=drop_last, seed=5, rank=rank, world_size=world
        )
        batches.epoch = epoch
        return batches

    alone = made(0, 1, batch_size * world_size)
    parts = [made(rank, world_size, batch_size) for rank in range(world_size)]
    lists = [list(part) for part in parts]
    assert [len(each) for each in lists] == [len(part) for part in parts]
    assert len(list(alone)) == len(alone)
    joined = [
        [index for own in lists if position < len(own) for index in own[position]]
        for position in range(max(len(own) for own in lists))
    ]
    assert joined == list(alone)
    indices = [index for batch in joined for index in batch]
    kept = size - size % (batch_size * world_size) if drop_last else size
    assert len(indices) == kept
    assert sorted(set(indices)) == sorted(indices)
    if not drop_last:
        assert sorted(indices) == list(range(size))
    assert not any(len(batch) > batch_size for own in lists for batch in own)
    assert max(map(len, lists)) - min(map(len, lists)) <= 1


@given(size=st.integers(0, 40), batch_size=st.integers(1, 7), skip=st.integers(0, 8), world_size=ranks)
def test_skip_leaves_out_the_first(size: int, batch_size: int, skip: int, world_size: int) -> None:
    """`skip` gives exactly what comes behind so many batches, on every rank."""
    for rank in range(world_size):
        batches = EpochBatches(size, batch_size=batch_size, shuffle=True, seed=1, rank=rank, world_size=world_size)
        whole = list(batches)
        batches.skip = skip
        assert list(batches) == whole[skip:]


def test_seed_and_epoch_decide() -> None:
    """The order is that of the seed and the epoch alone, and torch's generator is neither read nor moved."""

    def order(seed: int, epoch: int) -> list[list[int]]:
        batches = EpochBatches(50, batch_size=7, shuffle=True, seed=seed)
        batches.epoch = epoch
        return list(batches)

    torch.manual_seed(0)
    before = torch.get_rng_state()
    first = order(1, 0)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(1)
    assert order(1, 0) == first
    assert len({str(order(seed, epoch)) for seed in (0, 1, 2**64 - 1) for epoch in (0, 1, 2)}) == 9


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter(range(3))


class OwnLoader(DataLoader[Any]):
    """A loader of a class of its own, that takes other arguments."""

    def __init__(self, data: Dataset[Any]) -> None:
        super().__init__(data, batch_size=4, shuffle=True)


DATA = TensorDataset(torch.arange(10.0))

LEFT_ALONE: dict[str, Callable[[], Any]] = {
    "a list": lambda: [1, 2],
    "a stream": lambda: DataLoader(Stream(), batch_size=2),
    "a sampler": lambda: DataLoader(DATA, sampler=WeightedRandomSampler([1.0] * 10, 10)),
    "replacement": lambda: DataLoader(DATA, sampler=RandomSampler(DATA, replacement=True)),
    "a number of samples": lambda: DataLoader(DATA, sampler=RandomSampler(DATA, num_samples=5)),
    "a generator": lambda: DataLoader(DATA, shuffle=True, generator=torch.Generator()),
    "a batch sampler": lambda: DataLoader(
        DATA, batch_sampler=type("Own", (BatchSampler,), {})(SequentialSampler(DATA), 2, False)
    ),
    "no batches": lambda: DataLoader(DATA, batch_size=None),
}


@pytest.mark.parametrize("name", list(LEFT_ALONE))
def test_loaders_that_are_left_alone(name: str) -> None:
    """Where an order of ours would change what a loader means, it stays what it is."""
    loader = LEFT_ALONE[name]()
    assert with_own_order(loader, seed=0) is loader


@pytest.mark.parametrize("make", [lambda: DataLoader(DATA, batch_size=4, shuffle=True), lambda: OwnLoader(DATA)])
@pytest.mark.parametrize("drop_last", [False, True])
def test_a_twin(make: Callable[[], DataLoader[Any]], drop_last: bool) -> None:
    """A twin shares data set and settings, and leaves the loader as it was."""
    loader = make()
    if drop_last:
        loader = DataLoader(DATA, batch_size=4, shuffle=True, drop_last=True)
    sampler = loader.batch_sampler
    twin = with_own_order(loader, seed=3)
    assert type(twin) is type(loader)
    assert isinstance(twin, DataLoader)
    assert twin.dataset is loader.dataset
    assert loader.batch_sampler is sampler
    assert len(twin) == len(loader)
    values = [value for (batch,) in twin for value in batch.tolist()]
    assert len(values) == (8 if drop_last else 10)
    assert values == [value for (batch,) in twin for value in batch.tolist()]
    set_epoch(twin, 1)
    assert values != [value for (batch,) in twin for value in batch.tolist()]


def test_the_epoch_is_told_once_to_each() -> None:
    """Loader, data set, sampler and batch sampler with `set_epoch` are told it, one that is two of them once."""

    class Told(SequentialSampler):
        def __init__(self) -> None:
            super().__init__(DATA)
            self.epochs: list[int] = []

        def set_epoch(self, epoch: int) -> None:
            self.epochs.append(epoch)

    sampler = Told()
    set_epoch(DataLoader(DATA, sampler=sampler), 4)
    assert sampler.epochs == [4]
    set_epoch([1, 2], 4)  # has nobody to tell
