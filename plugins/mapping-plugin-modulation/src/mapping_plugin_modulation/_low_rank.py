"""The modulation `low_rank`: a few numbers for each matrix, along fixed directions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import accumulate

from torch import Tensor

from mapping_core import Modulation
from mapping_core.contexts import ModulationContext
from mapping_core.random import RandomStream
from mapping_plugin_modulation._numbers import FollowingNumbers

_PURPOSE, _SIGNS = 0x6C6F7772, 0x6C6F7773  # tell this modulation's draws from other kinds'


class LowRankModulation(Modulation):
    """``theta = base + delta + s / sqrt(r) * U diag(c) V'`` for every parameter of two or more dimensions.

    A kernel [o, i, h, w] is the matrix [o, i h w]; U [o, r] and V [i h w, r] are seeded
    signs; c are r numbers of the latent (`FollowingNumbers`); s is the layer's scale times
    `strength`, so a latent of standard deviation 1 changes weights by about s. Frozen random
    factors around a diagonal are also in VeRA (Kopiczko et al. 2024), which shares them between
    layers and trains two diagonals; here the numbers are the latent's. Vectors and scalars stay as
    they are. State: r bytes for each row and each column.
    """

    factors: Tensor

    def __init__(self, context: ModulationContext, *, rank: int, strength: float) -> None:
        super().__init__()
        matrices = [spec for spec in context.parameters if len(spec.shape) >= 2]
        self.rank = rank
        self._places = {spec.name: place for place, spec in enumerate(matrices)}
        self._scales = {spec.name: strength * spec.scale / math.sqrt(rank) for spec in matrices}
        self.numbers = FollowingNumbers(context, max(1, len(matrices)) * rank, purpose=_PURPOSE)
        sides = [side for spec in matrices for side in (spec.shape[0], math.prod(spec.shape[1:]))]
        signs = RandomStream(context.seed, stream=context.stream, purpose=_SIGNS).signs(rank * sum(sides))
        #: All of U and V in turn, [rows and columns, rank].
        self.register_buffer("factors", signs.view(-1, rank), persistent=False)
        starts = list(accumulate(sides, initial=0))
        self._ranges = {
            name: (slice(*starts[2 * at : 2 * at + 2]), slice(*starts[2 * at + 1 : 2 * at + 3]))
            for name, at in self._places.items()
        }

    def forward(self, delta: dict[str, Tensor], z: Tensor, base: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return self._changed(delta, z, None)

    def of_rows(
        self, delta: dict[str, Tensor], z: Tensor, base: Mapping[str, Tensor], rows: tuple[int, int]
    ) -> dict[str, Tensor]:
        return self._changed(delta, z, rows)

    def _changed(self, delta: dict[str, Tensor], z: Tensor, rows: tuple[int, int] | None) -> dict[str, Tensor]:
        numbers = self.numbers(z)
        changed = dict(delta)
        for name in delta.keys() & self._places.keys():
            place = self._places[name]
            left, right = (self.factors[part].to(z.dtype) for part in self._ranges[name])
            if rows is not None:
                left = left[rows[0] : rows[1]]
            middle = numbers[..., place * self.rank : (place + 1) * self.rank]
            term = (left * middle.unsqueeze(-2)) @ right.T
            changed[name] = delta[name] + self._scales[name] * term.reshape(delta[name].shape)
        return changed
