"""The loss that looks at the targets."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from mapping_core.builtin.losses.predictions import require_tensor
from mapping_core.interfaces.loss import Loss, LossStep


class AutoLoss(Loss):
    """Scores integer targets by `classification`, floating ones by `regression`."""

    def __init__(self, *, classification: Loss, regression: Loss) -> None:
        super().__init__()
        self.classification = classification
        self.regression = regression

    def forward(self, step: LossStep) -> Tensor:
        loss: Tensor = self._choose(step)(step)
        return loss

    def items(self, step: LossStep) -> int:
        return self._choose(step).items(step)

    def metrics(self, step: LossStep) -> Mapping[str, Tensor | float]:
        return self._choose(step).metrics(step)

    def per_sample(self, step: LossStep) -> Tensor | None:
        return self._choose(step).per_sample(step)

    def scores(self, step: LossStep) -> Tensor | None:
        return self._choose(step).scores(step)

    def _choose(self, step: LossStep) -> Loss:
        targets = require_tensor(step.targets, "auto")
        return self.regression if targets.is_floating_point() else self.classification
