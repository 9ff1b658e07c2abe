"""Counting the bytes that DistributedDataParallel sends."""

# Annotations are no strings here: torch compares those of a communication hook with its own types.
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

import torch
from attrs import define
from torch import Tensor, distributed
from torch.distributed import GradBucket, group  # type: ignore[attr-defined]
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel


@define
class Traffic:
    """Bytes a rank gave to the others so far: gradients, and states that rank 0 broadcasts."""

    gradients: int = 0
    broadcast: int = 0

    def count_gradients(self, model: DistributedDataParallel) -> None:
        """Count what `model` reduces from now on."""
        model.register_comm_hook(self, _counted_reduction)

    def since(self) -> Self:
        """What was counted up to now; counting begins at 0 again."""
        past = type(self)(self.gradients, self.broadcast)
        self.gradients = self.broadcast = 0
        return past


@contextmanager
def counted_broadcasts() -> Iterator[Traffic]:
    """Count what DistributedDataParallel broadcasts inside: all at construction, buffers before each forward pass."""
    traffic = Traffic()
    torch_distributed: Any = distributed  # where both broadcasts look the function up
    original = torch_distributed._broadcast_coalesced

    def counted(group: Any, tensors: list[Tensor], *rest: Any) -> Any:
        traffic.broadcast += sum(tensor.nbytes for tensor in tensors)
        return original(group, tensors, *rest)

    torch_distributed._broadcast_coalesced = counted
    try:
        yield traffic
    finally:
        torch_distributed._broadcast_coalesced = original


def _counted_reduction(traffic: Traffic, bucket: GradBucket) -> torch.futures.Future[Tensor]:
    traffic.gradients += bucket.buffer().nbytes
    return allreduce_hook(group.WORLD, bucket)  # type: ignore[arg-type]
