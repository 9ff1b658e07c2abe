"""The dense reference mapper."""

from __future__ import annotations

import torch
from torch import Tensor

from mapping_core.contexts import MapperContext
from mapping_core.errors import BudgetError
from mapping_core.interfaces.mapper import Mapper
from mapping_core.random import RandomStream

_PURPOSE = 0x0072746F  # tells this mapper's draws from other kinds'


class OrthogonalMapper(Mapper):
    """``G z`` with a stored matrix [n, d] made of blocks of d orthonormal rows.

    Each block is the Q of the QR decomposition of a Gaussian d x d matrix, with the signs
    of R's diagonal folded in, hence uniformly distributed (Mezzadri, "How to generate
    random matrices from the classical compact groups", 2007). State: 4 n d bytes.

    The last digits depend on the library that computes the QR decomposition: a reference to
    compare with, and not a mapping to keep files of for years.
    """

    bits: Tensor

    def __init__(self, context: MapperContext, *, max_bytes: int) -> None:
        super().__init__(context.in_features, context.out_features)
        d, n = context.in_features, context.out_features
        if 4 * n * d > max_bytes:
            raise BudgetError(
                f"mapper 'orthogonal' would store {4 * n * d / 1e6:,.0f} MB ({n:,} weights x {d:,} numbers), more than "
                f"max_bytes={max_bytes:,}: use mapper='srht', or Orthogonal(max_bytes=...)"
            )
        blocks = -(-n // d)
        weight = torch.empty(n, d)
        stream = RandomStream(context.seed, stream=context.stream, purpose=_PURPOSE)
        drawn = d * d + d * d % 2  # an even number of draws a block
        for block in range(blocks):
            rows = slice(block * d, min(n, (block + 1) * d))
            q, r = torch.linalg.qr(stream.normal(d * d, start=block * drawn).view(d, d))
            weight[rows] = (q * r.diagonal().sign())[: rows.stop - rows.start].float()
        # As integers: moving the module to another dtype does not round them.
        self.register_buffer("bits", weight.view(torch.int32), persistent=False)

    def forward(self, z: Tensor) -> Tensor:
        return self.rows(z, 0, self.out_features)

    def rows(self, z: Tensor, start: int, stop: int) -> Tensor:
        return z @ self.bits[start:stop].view(torch.float32).to(z.dtype).T
