"""One epoch's batches, from the beginning or from where a run stopped."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from torch.utils.data import DataLoader

from mapping_core.training.randomness import random_state, set_random_state
from mapping_core.training.sampling import EpochBatches, set_epoch


def epoch_batches(loader: Iterable[Any], epoch: int, *, skip: int, began_with: dict[str, Any]) -> Iterator[Any]:
    """The batches of `epoch` after the first `skip`, exactly as an uninterrupted run goes on with them.

    Where our own sampler orders the batches and this process loads them, the first ones
    are left out. Any other loader is iterated from the epoch's beginning, under the random
    state that it `began_with`, and its first batches are dropped: they are loaded in vain,
    but its samplers and workers then are where they were.
    """
    set_epoch(loader, epoch)
    if not skip:
        return iter(loader)
    now = random_state(loader)
    sampler = getattr(loader, "batch_sampler", None)
    if isinstance(loader, DataLoader) and isinstance(sampler, EpochBatches) and loader.num_workers == 0:
        batches = _skipping(loader, sampler, skip)
    else:
        set_random_state(began_with, loader)
        batches = iter(loader)
        for _ in range(skip):
            next(batches, None)
    set_random_state(now, loader)
    return batches


def _skipping(loader: Iterable[Any], sampler: EpochBatches, skip: int) -> Iterator[Any]:
    sampler.skip = skip
    batches = iter(loader)
    return _restoring(batches, sampler)


def _restoring(batches: Iterator[Any], sampler: EpochBatches) -> Iterator[Any]:
    try:
        yield from batches
    finally:
        sampler.skip = 0
