"""The loss `alignment`."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from mapping_core.interfaces.loss import LossStep
from mapping_plugin_mapping_loss._paired import Paired, displaced, noise_like
from mapping_plugin_mapping_loss._term import Term


class AlignmentLoss(Term):
    """``(cos(e1, e2) - cos(f(z + e1) - f(z), f(z + e2) - f(z)))^2``, passes under the same random draws.

    e1 is random, of length ``noise * sqrt(d)``; e2 is as long, at an angle whose cosine is
    uniform in (-1, 1). Outputs are compared as one vector over the batch. It is 0 when the
    outputs turn as the latent does: no direction of the latent counts more than another.
    """

    kind = "alignment"
    own_passes = 2

    def __init__(self, *, noise: float) -> None:
        super().__init__()
        self.noise = noise

    def measure(self, step: LossStep, paired: Paired) -> Tensor:
        first = functional.normalize(noise_like(paired.latents), dim=0)
        second = noise_like(paired.latents)
        second = functional.normalize(second - (second @ first) * first, dim=0)
        cosine = 2 * torch.rand((), dtype=first.dtype, device=first.device) - 1
        second = cosine * first + (1 - cosine.square()).sqrt() * second
        length = self.noise * len(first) ** 0.5
        move, other = (
            (paired.outputs(displaced(paired.latents, length * each)) - paired.reference).flatten()
            for each in (first, second)
        )
        wanted = functional.cosine_similarity(first, second, dim=0)  # the cosine, but where d = 1 leaves no angle
        return (wanted - functional.cosine_similarity(move, other, dim=0)).square()
