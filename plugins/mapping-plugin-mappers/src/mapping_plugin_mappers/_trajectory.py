"""The mapper `trajectory`: a trained basis, read from a file."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mapping_core import BudgetError, Mapper, TargetError
from mapping_core.contexts import MapperContext
from mapping_plugin_mappers._basis import read_basis


class TrajectoryMapper(Mapper):
    """``G z`` with G [n, d] the first d principal directions of a recorded run, times ``sqrt(n / d)``.

    The directions are orthonormal, so ``G'G = (n/d) I`` and rows have norm 1 on average. A
    weight moves by its row scale times ``(G z)_i``; the basis is made of movements divided
    by these scales, so that along its directions the weights move as they did.

    Cost: 2 n d multiplications each way. State: 4 n d bytes, which are trained numbers: they
    count as the mapping's, not as the latent's.
    """

    bits: Tensor

    def __init__(self, context: MapperContext, *, path: str, sha256: str) -> None:
        super().__init__(context.in_features, context.out_features)
        d, n = self.in_features, self.out_features
        directions, held = read_basis(path, sha256, d)
        if directions.shape[1] != n:
            raise TargetError(
                f"{path}: is a basis for {directions.shape[1]:,} weights, here are {n:,}: it fits the target it was "
                "recorded of, with a strategy that has one latent for all weights, such as 'slvt'"
            )
        if d > held:
            raise BudgetError(f"{path}: holds {held:,} directions, a latent of {d:,} numbers needs as many")
        # As integers: moving the module to another dtype does not round them.
        self.register_buffer("bits", (directions * math.sqrt(n / d)).view(torch.int32), persistent=False)

    def forward(self, z: Tensor) -> Tensor:
        return self.rows(z, 0, self.out_features)

    def rows(self, z: Tensor, start: int, stop: int) -> Tensor:
        return z @ self.bits[:, start:stop].view(torch.float32).to(z.dtype)
