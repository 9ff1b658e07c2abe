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
    sampler = getattr(loader, "batch_sampler", None)
    ours = sampler if isinstance(sampler, EpochBatches) else None
    if ours is not None:
        ours.skip = 0
    if not skip:
        return iter(loader)
    now = random_state(loader)
    batches: Iterator[Any]
    if ours is not None and isinstance(loader, DataLoader) and loader.num_workers == 0:
        ours.skip = skip  # until the next epoch sets it
        batches = iter(loader)
    else:
        set_random_state(began_with, loader)
        batches = iter(loader)
        for _ in range(skip):
            next(batches, None)
    set_random_state(now, loader)
    return batches
