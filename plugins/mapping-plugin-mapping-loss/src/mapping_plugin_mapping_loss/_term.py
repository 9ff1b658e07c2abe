"""What the terms of the mapping loss have in common."""

from __future__ import annotations

from abc import abstractmethod

from torch import Tensor

from mapping_core import Loss
from mapping_core.builtin.losses.predictions import main_tensor
from mapping_core.interfaces.loss import LossStep
from mapping_plugin_mapping_loss._paired import Paired


class Term(Loss):
    """A loss that compares passes under several latents; an item is a sample.

    `own_passes` are the forward passes it makes beside the one at the latent itself, which terms
    share when there are several; `needs_reference` says whether it needs that one at all.
    `inert` terms have nothing to say, as a smoothness that is a constant.
    """

    kind: str
    own_passes: int = 0
    needs_reference: bool = True
    twice: bool = False
    inert: bool = False

    @property
    def forward_passes(self) -> float:
        """Forward passes of the target that a step costs on top of its own."""
        return self.own_passes + self.needs_reference

    @abstractmethod
    def measure(self, step: LossStep, paired: Paired) -> Tensor:
        """The term's value, a scalar with a gradient."""

    def forward(self, step: LossStep) -> Tensor:
        return self.measure(step, Paired(step, self.kind, twice=self.twice))

    def items(self, step: LossStep) -> int:
        predictions = main_tensor(step.predictions, self.kind)
        return predictions.shape[0] if predictions.ndim else 1
