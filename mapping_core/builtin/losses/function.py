"""A loss that is a function of outputs and targets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from mapping_core.errors import ConfigError, LossError
from mapping_core.interfaces.loss import Loss, LossStep


class FunctionLoss(Loss):
    """Calls ``function(outputs, targets)`` for the mean over a batch, such as one of `torch.nn`'s losses.

    An item is an element of the targets' first dimension; where the function has an
    `ignore_index`, as `nn.CrossEntropyLoss`, it is a target that is not ignored. A module's
    parameters train with the model.

    >>> loss = FunctionLoss(nn.SmoothL1Loss())
    >>> step = LossStep(predictions=torch.ones(3, 2), targets=torch.zeros(3, 2), latents={}, evaluate=lambda _: None)
    >>> float(loss(step)), loss.items(step)
    (0.5, 3)

    Raises `ConfigError` for a function that says it returns no mean (``reduction="sum"``),
    `LossError` for one that does not return a scalar, or targets whose items cannot be counted.
    """

    def __init__(self, function: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.function = function
        self._name = getattr(function, "__name__", type(function).__name__)
        reduction = getattr(function, "reduction", "mean")
        if reduction not in ("mean", "batchmean"):
            raise ConfigError(
                f"{self._name} has reduction={reduction!r}; batches are weighted by their items here, so it must "
                "return a mean: set reduction='mean'",
                path="loss",
            )

    def forward(self, step: LossStep) -> Tensor:
        loss = self.function(step.predictions, step.targets)
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            got = f"shape {list(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
            raise LossError(f"loss {self._name} must return the batch's mean as a scalar tensor, it returned {got}")
        return loss.reshape(())

    def items(self, step: LossStep) -> int:
        targets = step.targets
        if not isinstance(targets, Tensor):
            raise LossError(
                f"loss {self._name}: targets of type {type(targets).__name__} cannot be counted, and batches are "
                "weighted by their items: write a mapping_core.Loss, whose items(step) says how many there are"
            )
        ignored = getattr(self.function, "ignore_index", None)
        if isinstance(ignored, int) and not targets.is_floating_point():
            return int(torch.count_nonzero(targets != ignored))
        return targets.shape[0] if targets.ndim else 1


def loss_of(given: Any) -> Loss | None:
    """The loss that an object is: a `Loss`, or a function of outputs and targets; None for what names a component."""
    if isinstance(given, Loss):
        return given
    if isinstance(given, type) and issubclass(given, nn.Module):
        raise ConfigError(f"{given.__name__} is a class: make a loss of it, {given.__name__}()", path="loss")
    if isinstance(given, type) or not callable(given):
        return None
    return FunctionLoss(given)
