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
    """What all ranks know after a window: sums over ranks of what each had to say."""

    items: int
    bad: bool
    ended: bool
    stop: bool
    signum: int


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
        self._first_items = 0
        for parameter in self._parameters:
            parameter.grad = None

    def add(self, loss: Tensor, items: int) -> None:
        """Backward of one batch; a loss without items, or one that is not finite, adds none."""
        self.batches += 1
        if items == 0 or self.bad:
            return
        if not self._first_items:
            self._first_items = items
        elif items != self._first_items:
            loss = loss * (items / self._first_items)
        self.items += items
        self._fabric.backward(loss)

    def refuse(self) -> None:
        """Note a batch whose loss is not finite: its window makes no step, on any rank."""
        self.batches += 1
        self.bad = True

    def agree(self, *, ended: bool, stop: bool, signum: int) -> Agreed:
        """Reduce the gradients over all batches and ranks, and what the ranks have to tell one another.

        `ended` comes back true when every rank's loader has ended, the others when they are so on any.
        """
        if self._fabric.world_size == 1:
            self._rescale(self.items)
            return Agreed(items=self.items, bad=self.bad, ended=ended, stop=stop, signum=signum)
        present = [parameter.grad is not None for parameter in self._parameters]
        words = [self.items, self.bad, ended, stop, signum, *present]
        sums = self._fabric.all_reduce(torch.tensor(words, dtype=torch.float64), reduce_op="sum")
        assert isinstance(sums, Tensor)
        items, bad, enders, stops, signals, *holders = (int(each) for each in sums.tolist())
        if items and not bad:
            self._rescale(items)
            self._reduce([parameter for parameter, held in zip(self._parameters, holders, strict=True) if held])
        return Agreed(
            items=items,
            bad=bad > 0,
            ended=enders == self._fabric.world_size,
            stop=stops > 0,
            # Ranks are sent the same signal, if not at the same moment.
            signum=signals and (signum or signals),
        )

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
            flat = self._fabric.all_reduce(flat, reduce_op="sum")  # type: ignore[assignment]
            pieces = torch.split(flat, [grad.numel() for grad in grads])
            torch._foreach_copy_(grads, [piece.view_as(grad) for piece, grad in zip(pieces, grads, strict=True)])

    def clip(self) -> float:
        """Clip as configured; returns the norm before, which is not finite if any number is not."""
        grads = [parameter.grad for parameter in self._parameters if parameter.grad is not None]
        norm = torch.nn.utils.get_total_norm(grads)
        value = float(norm)
        if self._clip_value is not None:
            torch.nn.utils.clip_grad_value_(self._parameters, self._clip_value)
        # An infinite norm would turn every number into 0 or NaN.
        if self._clip_norm is not None and value < float("inf"):
            torch.nn.utils.clip_grads_with_norm_(self._parameters, self._clip_norm, norm)
        return value
