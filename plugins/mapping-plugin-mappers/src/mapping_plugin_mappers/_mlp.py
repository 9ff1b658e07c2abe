"""The mapper `mlp`: one hidden layer of tanh units, both layers structured."""

from __future__ import annotations

import torch
from torch import Tensor

from mapping_core.builtin.mappers import Srht
from mapping_core.contexts import MapperContext
from mapping_core.interfaces.mapper import Mapper
from mapping_core.random import RandomStream

_SEEDS = 0x006D6C70  # purpose: tells this mapper's draws from other kinds'
_REACH = 8  # how far a unit goes, in the latent's own units


class MlpMapper(Mapper):
    """``8 B tanh(A z / 8)`` with fixed A [hidden, d] and B [n, hidden], after "Mapping Networks" (arXiv 2602.19134).

    A and B are core's `srht`, with seeds drawn from this mapper's: nothing dense is
    stored. Their rows have norm 1, so 0 goes to 0, the slope there is ``B A``, whose rows
    have norm 1 on average (exactly when hidden = d is a power of two), and a small z gives
    weights as large as it is. The units saturate where A z is well above 8: training moves
    weights by several times their initial spread, and units that end at 1 cannot follow.

    Cost: `srht`'s, and `hidden` values of tanh. State: `srht`'s, about
    2 sqrt(n hidden) + 2 sqrt(hidden d) bytes.
    """

    def __init__(self, context: MapperContext, *, hidden: int | None) -> None:
        super().__init__(context.in_features, context.out_features)
        hidden = hidden or self.in_features
        words = RandomStream(context.seed, stream=context.stream, purpose=_SEEDS).words(4).tolist()
        first, second = words[0] << 32 | words[1], words[2] << 32 | words[3]
        self.hidden = Srht().build(MapperContext(in_features=self.in_features, out_features=hidden, seed=first))
        self.output = Srht().build(MapperContext(in_features=hidden, out_features=self.out_features, seed=second))

    def forward(self, z: Tensor) -> Tensor:
        output: Tensor = self.output(self._units(z))
        return output

    def rows(self, z: Tensor, start: int, stop: int) -> Tensor:
        return self.output.rows(self._units(z), start, stop)

    def _units(self, z: Tensor) -> Tensor:
        return _REACH * torch.tanh(self.hidden(z) / _REACH)
