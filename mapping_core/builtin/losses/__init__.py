"""Task losses in core: `auto` (chosen from the first batch), `cross_entropy`, `mse`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import define, field
from attrs.validators import ge, lt

from mapping_core.components import LossConfig

if TYPE_CHECKING:
    from mapping_core.contexts import LossContext
    from mapping_core.interfaces.loss import Loss


@define(frozen=True, kw_only=True)
class CrossEntropy(LossConfig):
    """Classification: predictions [N, C, ...] as logits, integer targets [N, ...]; reports accuracy.

    Targets equal to `ignore_index` count neither in the loss nor in the accuracy.
    """

    name = "cross_entropy"
    ignore_index: int = -100
    label_smoothing: float = field(default=0.0, validator=[ge(0.0), lt(1.0)])

    def build(self, context: LossContext) -> Loss:
        from mapping_core.builtin.losses.cross_entropy import CrossEntropyLoss

        return CrossEntropyLoss(ignore_index=self.ignore_index, label_smoothing=self.label_smoothing)


@define(frozen=True, kw_only=True)
class Mse(LossConfig):
    """Regression: the mean squared error; predictions and targets of the same shape."""

    name = "mse"

    def build(self, context: LossContext) -> Loss:
        from mapping_core.builtin.losses.mse import MseLoss

        return MseLoss()


@define(frozen=True, kw_only=True)
class Auto(LossConfig):
    """Cross-entropy for integer targets, mean squared error for floating ones."""

    name = "auto"

    def build(self, context: LossContext) -> Loss:
        from mapping_core.builtin.losses.auto import AutoLoss

        return AutoLoss(classification=CrossEntropy().build(context), regression=Mse().build(context))
