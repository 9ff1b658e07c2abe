"""The gradient of one optimiser step: over several batches, over all ranks, clipped, and finite or not taken."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from attrs import define
from torch import Tensor

if TYPE_CHECKING:
    from lightning_fabric import Fabric

    from mapping_core.training.config import TrainerConfig


@define(frozen=True, kw_only=True)
class Agreed:
    """What all ranks know of a window: its items and mean loss on all of them, and whether all loaders have ended."""

    items: int
    loss: Tensor
    bad: bool
    ended: bool


class GradientWindow:
    """Gathers the gradients of the batches of one optimiser step.

    Every batch's mean loss counts by its items, on every rank: the gradient is that of the
    mean over all items, as if they had been one batch. With one batch on one rank nothing
    is multiplied, so the step is that of a plain loop, bit for bit.
    """

    def __init__(self, fabric: Fabric, parameters: Sequence[Tensor], config: TrainerConfig) -> None:
        self._fabric = fabric
        self._parameters = list(parameters)
        self._clip_norm, self._clip_value = config.clip_norm, config.clip_value
        self.clear()

    def clear(self) -> None:
        """Forget the window; gradients are dropped."""
        self.batches = 0
        self.items = 0
        self.bad = False
        self._losses: list[tuple[Tensor, int]] = []
        self._first_items = 0
        for parameter in self._parameters:
            parameter.grad = None

    def add(self, loss: Tensor, items: int) -> None:
        """Backward of one batch; a loss without items, or one that is not finite, adds none."""
        self.batches += 1
        if items == 0 or self.bad:
            return
        self._losses.append((loss.detach(), items))
        if not self._first_items:
            self._first_items = items
        elif items != self._first_items:
            loss = loss * (items / self._first_items)
        self.items += items
        self._fabric.strategy.backward(loss, None)

    def refuse(self) -> None:
        """Note a batch whose loss is not finite: its window makes no step, on any rank."""
        self.batches += 1
        self.bad = True

    def agree(self, *, ended: bool) -> Agreed:
        """Reduce the gradients over all batches and ranks; a window that is bad on any rank is so on all."""
        if self._fabric.world_size == 1:
            self._rescale(self.items)
            return Agreed(items=self.items, loss=self._mean_loss(), bad=self.bad, ended=ended)
        present = [parameter.grad is not None for parameter in self._parameters]
        total = sum(float(loss) * items for loss, items in self._losses)
        words = [self.items, total, self.bad, ended, *present]
        sums = torch.tensor(words, dtype=torch.float64, device=self._fabric.device)
        torch.distributed.all_reduce(sums)
        count, total, bad, enders, *holders = sums.tolist()
        items = int(count)
        if items and not bad:
            self._rescale(items)
            self._reduce([parameter for parameter, held in zip(self._parameters, holders, strict=True) if held])
        mean = torch.tensor(total / items if items else float("nan"))
        return Agreed(items=items, loss=mean, bad=bad > 0, ended=enders == self._fabric.world_size)

    def _mean_loss(self) -> Tensor:
        if len(self._losses) == 1:
            return self._losses[0][0]
        total = sum(float(loss) * items for loss, items in self._losses)
        return torch.tensor(total / max(1, self.items))

    def _rescale(self, items: int) -> None:
        """From sums in units of the first batch's mean to the mean over `items`."""
        if items and items != self._first_items:
            grads = [parameter.grad for parameter in self._parameters if parameter.grad is not None]
            if grads:
                torch._foreach_mul_(grads, self._first_items / items)

    def _reduce(self, parameters: Sequence[Tensor]) -> None:
        """Sum gradients over ranks, in one message a dtype."""
        for dtype in {parameter.dtype for parameter in parameters}:
            chosen = [parameter for parameter in parameters if parameter.dtype == dtype]
            for parameter in chosen:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
            grads = [parameter.grad for parameter in chosen if parameter.grad is not None]
            flat = torch.cat([grad.reshape(-1) for grad in grads])
            torch.distributed.all_reduce(flat)
            pieces = torch.split(flat, [grad.numel() for grad in grads])
            torch._foreach_copy_(grads, [piece.view_as(grad) for piece, grad in zip(pieces, grads, strict=True)])

    def clip(self) -> float:
        """Clip as configured; returns the norm before, which is not finite if any number is not."""
        grads = [parameter.grad for parameter in self._parameters if parameter.grad is not None]
        # A latent is one tensor, whose norm needs no list of norms.
        norm = torch.linalg.vector_norm(grads[0]) if len(grads) == 1 else torch.nn.utils.get_total_norm(grads)
        value = float(norm)
        if self._clip_value is not None:
            torch.nn.utils.clip_grad_value_(self._parameters, self._clip_value)
        # An infinite norm would turn every number into 0 or NaN.
        if self._clip_norm is not None and value < float("inf"):
            torch.nn.utils.clip_grads_with_norm_(self._parameters, self._clip_norm, norm)
        return value
