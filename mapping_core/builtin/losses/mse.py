"""The regression loss."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from mapping_core.builtin.losses.predictions import main_tensor, require_tensor
from mapping_core.errors import LossError
from mapping_core.interfaces.loss import Loss, LossStep


class MseLoss(Loss):
    """Mean squared error over all elements; an item is a sample."""

    def forward(self, step: LossStep) -> Tensor:
        return functional.mse_loss(*self._checked(step))

    def per_sample(self, step: LossStep) -> Tensor:
        predictions, targets = self._checked(step)
        losses = functional.mse_loss(predictions, targets, reduction="none")
        return losses.flatten(1).mean(1) if losses.ndim > 1 else losses.reshape(-1)

    def scores(self, step: LossStep) -> Tensor:
        """The root of the sample's mean squared error, as its gradient is proportional to the error."""
        return self.per_sample(step).sqrt()

    def _checked(self, step: LossStep) -> tuple[Tensor, Tensor]:
        predictions = main_tensor(step.predictions, "mse")
        targets = require_tensor(step.targets, "mse")
        if predictions.shape != targets.shape:
            # torch would broadcast [N, 1] against [N] into an [N, N] error without a word.
            raise LossError(
                f"loss 'mse' needs predictions and targets of one shape, got {list(predictions.shape)} and "
                f"{list(targets.shape)}"
            )
        return predictions, targets.to(predictions.dtype)

    def items(self, step: LossStep) -> int:
        targets = require_tensor(step.targets, "mse")
        return targets.shape[0] if targets.ndim else 1
