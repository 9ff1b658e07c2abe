"""What ranks tell one another, so that all of them do the same.

`torch.distributed` is called as it is: Fabric's reductions wait at a barrier first, each time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import torch
from attrs import define
from torch import distributed

if TYPE_CHECKING:
    from lightning_fabric import Fabric

T = TypeVar("T")


@define(frozen=True, kw_only=True)
class Asked:
    """What callbacks and signals want: the run stopped, a checkpoint, an end by this signal (0 for none)."""

    stop: bool
    save: bool
    signum: int


def agree_on(fabric: Fabric, own: Asked) -> Asked:
    """What any rank wants; all ranks must call it at the same point."""
    if fabric.world_size == 1:
        return own
    words = torch.tensor([own.stop, own.save, own.signum], device=fabric.device)
    distributed.all_reduce(words, distributed.ReduceOp.MAX)
    stop, save, signum = words.tolist()
    return Asked(stop=bool(stop), save=bool(save), signum=signum)


def gathered(fabric: Fabric, own: T) -> list[T]:
    """Every rank's object, in their order."""
    if fabric.world_size == 1:
        return [own]
    objects = [own] * fabric.world_size
    distributed.all_gather_object(objects, own)
    return objects


def summed(fabric: Fabric, own: list[float]) -> list[float]:
    """The sums of numbers over all ranks; all must call it at the same point."""
    if fabric.world_size == 1:
        return own
    words = torch.tensor(own, dtype=torch.float64, device=fabric.device)
    distributed.all_reduce(words)
    return list(words.tolist())
