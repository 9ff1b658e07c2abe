"""The classification loss."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional

from mapping_core.builtin.losses.predictions import main_tensor, require_tensor
from mapping_core.errors import LossError
from mapping_core.interfaces.loss import Loss, LossStep


class CrossEntropyLoss(Loss):
    """Mean cross-entropy over the targets that are not `ignore_index`, and the accuracy over the same."""

    def __init__(self, *, ignore_index: int = -100, label_smoothing: float = 0.0) -> None:
        super().__init__()
        self.ignore_index = ignore_index
        self.label_smoothing = label_smoothing

    def forward(self, step: LossStep) -> Tensor:
        logits, targets = self._checked(step)
        return functional.cross_entropy(
            logits, targets, ignore_index=self.ignore_index, label_smoothing=self.label_smoothing
        )

    def items(self, step: LossStep) -> int:
        targets = require_tensor(step.targets, "cross_entropy")
        return int(torch.count_nonzero(targets != self.ignore_index))

    def metrics(self, step: LossStep) -> Mapping[str, Tensor | float]:
        logits, targets = self._checked(step)
        hits = logits.detach().argmax(dim=1) == targets
        if self.ignore_index >= 0:  # a class, which a prediction may hit
            hits = hits & (targets != self.ignore_index)
        items = self.items(step)
        return {"accuracy": int(torch.count_nonzero(hits)) / items if items else math.nan}

    def per_sample(self, step: LossStep) -> Tensor:
        logits, targets = self._checked(step)
        losses = functional.cross_entropy(
            logits, targets, ignore_index=self.ignore_index, label_smoothing=self.label_smoothing, reduction="none"
        )
        return losses.flatten(1).sum(1) if losses.ndim > 1 else losses

    def scores(self, step: LossStep) -> Tensor:
        """The norm of the loss's gradient with respect to the logits."""
        logits, targets = self._checked(step)
        counted = targets != self.ignore_index
        classes = logits.shape[1]
        away = logits.softmax(1)
        smooth = self.label_smoothing
        wanted = torch.where(counted, targets, 0).unsqueeze(1)
        # |p - y|^2 = |p|^2 - 2 p.y + |y|^2, without making y.
        squares = away.square().sum(1) - 2.0 * ((1.0 - smooth) * away.gather(1, wanted).squeeze(1) + smooth / classes)
        squares = squares + (1.0 - smooth) ** 2 + smooth * (2.0 - smooth) / classes
        squares = torch.where(counted, squares.clamp(min=0.0), 0.0)
        return (squares.flatten(1).sum(1) if squares.ndim > 1 else squares).sqrt()

    def _checked(self, step: LossStep) -> tuple[Tensor, Tensor]:
        logits = main_tensor(step.predictions, "cross_entropy")
        targets = require_tensor(step.targets, "cross_entropy")
        shape = logits.shape
        expected = shape[:1] + shape[2:] if len(shape) > 2 else shape[:1]
        if len(shape) < 2 or targets.shape != expected or targets.is_floating_point():
            raise LossError(
                f"loss 'cross_entropy' needs logits [N, C, ...] and integer targets [N, ...]; got logits "
                f"{list(logits.shape)} and {str(targets.dtype).removeprefix('torch.')} targets {list(targets.shape)}"
                + (": the classes must be dimension 1, not the last" if targets.shape == shape[:-1] else "")
            )
        return logits, targets if targets.dtype == torch.int64 else targets.long()
