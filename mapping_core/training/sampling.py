"""The order of samples: decided by a seed and the epoch alone, so that a run can go on from its middle."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, Sampler, SequentialSampler

from mapping_core.random import RandomStream

_ORDER = 0x6F726465  # the purpose of the draws that order samples


class EpochBatches(Sampler[list[int]]):
    """Batches of indices; which ones, only the seed and the epoch decide.

    With several ranks a batch of `batch_size * world_size` indices is cut into one part a
    rank, a short last batch too: together the ranks see what one process with the larger
    batch sees, each index once. `skip` leaves out an epoch's first batches.

    >>> batches = EpochBatches(5, batch_size=2, shuffle=False)
    >>> list(batches), list(EpochBatches(5, batch_size=2, shuffle=False, rank=1, world_size=2))
    ([[0, 1], [2, 3], [4]], [[2, 3]])
    """

    def __init__(
        self,
        size: int,
        *,
        batch_size: int,
        shuffle: bool,
        drop_last: bool = False,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        self.size, self.batch_size, self.shuffle, self.drop_last = size, batch_size, shuffle, drop_last
        self.seed, self.rank, self.world_size = seed, rank, world_size
        self.epoch = 0
        self.skip = 0

    def __len__(self) -> int:
        full, rest = divmod(self.size, self.batch_size * self.world_size)
        return full if self.drop_last or not self._part(rest) else full + 1

    def __iter__(self) -> Iterator[list[int]]:
        together = self.batch_size * self.world_size
        order = self._order()
        for start in range(self.skip * together, self.size, together):
            batch = order[start : start + together]
            if len(batch) < together and self.drop_last:
                return
            if part := self._part(len(batch)):
                yield batch[part.start : part.stop].tolist()

    def _part(self, count: int) -> range:
        """Where this rank's part of a batch of `count` lies; parts differ by one at most, the first are larger."""
        small, larger = divmod(count, self.world_size)
        start = self.rank * small + min(self.rank, larger)
        return range(start, start + small + (self.rank < larger))

    def _order(self) -> torch.Tensor:
        if not self.shuffle:
            return torch.arange(self.size)
        word = int(RandomStream(self.seed, stream=self.epoch, purpose=_ORDER).words(1)[0])
        return torch.randperm(self.size, generator=torch.Generator().manual_seed(word))


def with_own_order(loader: Iterable[Any], *, seed: int, rank: int = 0, world_size: int = 1) -> Iterable[Any]:
    """A twin of the loader whose order is an `EpochBatches`; the loader itself where that would change its meaning.

    That is where it has batches or a sampler of the user's own, a generator of the user's
    own, or a data set without indices. The loader is not touched; a twin shares its data set.
    """
    if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
        return loader
    sampler = loader.sampler
    shuffled = type(sampler) is RandomSampler and not sampler.replacement and sampler._num_samples is None
    plain = type(sampler) is SequentialSampler or (shuffled and getattr(sampler, "generator", None) is None)
    if not plain or type(loader.batch_sampler) is not BatchSampler or loader.batch_size is None:
        return loader
    batches = EpochBatches(
        len(loader.dataset),  # type: ignore[arg-type]
        batch_size=loader.batch_size,
        shuffle=shuffled,
        drop_last=loader.drop_last,
        seed=seed,
        rank=rank,
        world_size=world_size,
    )
    twin = copy.copy(loader)
    # `DataLoader` refuses to have these set once it is made, and making one anew fails for subclasses.
    vars(twin).update(batch_sampler=batches, _iterator=None)
    return twin


def set_epoch(loader: Iterable[Any], epoch: int) -> None:
    """Tell the epoch to whatever orders the loader's samples and wants to know it."""
    places = (loader, *(getattr(loader, name, None) for name in ("dataset", "sampler", "batch_sampler")))
    for place in {id(each): each for each in places}.values():
        if callable(method := getattr(place, "set_epoch", None)):
            method(epoch)
        elif isinstance(place, EpochBatches):
            place.epoch = epoch
