"""The loss `stability`."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from mapping_core.errors import LossError
from mapping_core.interfaces.loss import LossStep
from mapping_plugin_mapping_loss._paired import Paired, displaced, noise_like
from mapping_plugin_mapping_loss._term import Term


class StabilityLoss(Term):
    """``D(f(z), f(z + noise * e))`` for a standard normal e, both passes under the same random draws.

    D is the Kullback-Leibler divergence of class probabilities, over dimension 1 of the logits and
    the mean of the rest, or the mean squared difference. The gradient goes through both sides.
    """

    kind = "stability"
    own_passes = 1

    def __init__(self, *, noise: float, distance: str) -> None:
        super().__init__()
        self.noise = noise
        self.distance = distance

    def measure(self, step: LossStep, paired: Paired) -> Tensor:
        reference = paired.reference
        other = paired.outputs(displaced(paired.latents, self.noise * noise_like(paired.latents)))
        if not self._between_classes(step.targets):
            return functional.mse_loss(other, reference)
        if reference.ndim < 2:
            raise LossError(
                f"loss 'stability' with distance='kl' needs logits [N, C, ...], got {list(reference.shape)}: use "
                "distance='squared'"
            )
        p, q = functional.log_softmax(reference, dim=1), functional.log_softmax(other, dim=1)
        return (p.exp() * (p - q)).sum(dim=1).mean()

    def _between_classes(self, targets: object) -> bool:
        if self.distance == "auto":
            return isinstance(targets, Tensor) and not targets.is_floating_point()
        return self.distance == "kl"
