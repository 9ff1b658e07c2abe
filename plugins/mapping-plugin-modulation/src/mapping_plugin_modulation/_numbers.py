"""Numbers that follow a latent: the few that a modulation needs, through a fixed map."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from mapping_core.contexts import ModulationContext
from mapping_core.random import RandomStream


class FollowingNumbers(nn.Module):
    """``count`` signed sums of the latent's numbers, of norm 1 each: [..., d] -> [..., count].

    The latent's numbers are dealt to `groups` groups in turn (by default as many as fit: the
    smaller of d and `count`), and so are the results: result i is ``e_i / sqrt(m) * sum of
    f_j z_j`` over the m numbers j of group ``i mod groups``, with seeded signs e and f. 0
    gives 0, and a latent of standard deviation 1 gives results of standard deviation 1.
    """

    given: Tensor
    taken: Tensor
    sizes: Tensor

    def __init__(self, context: ModulationContext, count: int, *, purpose: int, groups: int | None = None) -> None:
        super().__init__()
        d = context.in_features
        self.count = count
        self.groups = min(count, d, count if groups is None else groups)
        signs = RandomStream(context.seed, stream=context.stream, purpose=purpose).signs(d + count)
        self.register_buffer("given", signs[:d].clone(), persistent=False)
        self.register_buffer("taken", signs[d:].clone(), persistent=False)
        # Whole numbers: moving the module to another dtype does not round them.
        self.register_buffer("sizes", torch.arange(d).remainder(self.groups).bincount(), persistent=False)

    def forward(self, z: Tensor) -> Tensor:
        padded = functional.pad(z * self.given, (0, -z.shape[-1] % self.groups))
        sums = padded.reshape(*z.shape[:-1], -1, self.groups).sum(-2) / self.sizes.to(z.dtype).sqrt()
        times = -(-self.count // self.groups)
        dealt = sums.unsqueeze(-2).expand(*sums.shape[:-1], times, self.groups).flatten(-2)
        numbers: Tensor = dealt[..., : self.count] * self.taken
        return numbers
