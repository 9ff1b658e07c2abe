"""The mapper itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from mapping_core import Mapper
from mapping_core.random import RandomStream
from torch import Tensor

if TYPE_CHECKING:
    from mapping_core.contexts import MapperContext

    from mapping_plugin_fourier import Fourier

#: Tells this mapper's random numbers from those of others: "four" in ASCII.
_PURPOSE = 0x666F7572


class FourierMapper(Mapper):
    """``w_i = sum_t +- sin(t z_j(i, t)) / norm``, t = 1 ... terms, with signs and j drawn from the seed.

    ``norm**2 = sum t**2``, so that rows of its slope at 0 have norm 1 (on average, where one
    number is drawn twice). State: 9 bytes a term and weight.
    """

    chosen: Tensor
    signs: Tensor
    frequencies: Tensor

    def __init__(self, config: Fourier, context: MapperContext) -> None:
        super().__init__(context.in_features, context.out_features)
        count = config.terms * self.out_features
        stream = RandomStream(context.seed, context.stream, _PURPOSE)
        chosen = stream.words(count) % self.in_features
        signs = RandomStream(context.seed, context.stream, _PURPOSE + 1).signs(count)
        frequencies = torch.arange(1.0, config.terms + 1, dtype=torch.float64)
        self.norm = float(frequencies.square().sum().sqrt())
        self.register_buffer("chosen", chosen.view(self.out_features, config.terms), persistent=False)
        self.register_buffer("signs", signs.view(self.out_features, config.terms), persistent=False)
        self.register_buffer("frequencies", frequencies, persistent=False)

    def forward(self, z: Tensor) -> Tensor:
        waves = torch.sin(z[..., None] * self.frequencies.to(z.dtype))  # [..., d, terms]
        terms = waves.flatten(-2)[..., self.chosen * waves.shape[-1] + torch.arange(waves.shape[-1], device=z.device)]
        return (terms * self.signs.to(z.dtype)).sum(dim=-1) / self.norm
