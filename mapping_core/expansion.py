"""`Expansion`: one latent through one mapper into the parameters it feeds.

The piece that strategies are made of: `slvt` has one, `layerwise` one a layer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate

import torch
from torch import Tensor, nn

from mapping_core.interfaces.mapper import Mapper
from mapping_core.interfaces.modulation import Modulation
from mapping_core.target.layout import ParameterSpec


class Expansion(nn.Module):
    """theta_p = base_p + scale_p * piece_p(mapper(z)), for each parameter p it feeds.

    The mapper's output is cut into pieces in the order of `parameters`; pieces are views,
    so the only new tensors of this size are the mapper's output and the weights.
    """

    def __init__(
        self, parameters: Sequence[ParameterSpec], mapper: Mapper, modulation: Modulation | None = None
    ) -> None:
        super().__init__()
        self.mapper = mapper
        self.modulation = modulation
        self._specs = tuple(parameters)
        self.names = tuple(spec.name for spec in parameters)
        stops = list(accumulate(spec.numel for spec in parameters))
        self._ranges = dict(zip(self.names, zip([0, *stops], stops, strict=False), strict=True))
        self._sizes = [spec.numel for spec in parameters]

    @property
    def latent_size(self) -> int:
        """How many numbers the latent has."""
        return self.mapper.in_features

    def forward(self, z: Tensor, base: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Weights by name for a latent [..., d]; computed in float32 (float64 for float64 latents)."""
        z = _widened(z)
        pieces = self.mapper(z).split(self._sizes, dim=-1)
        return self._assembled(z, base, zip(self._specs, pieces, strict=True))

    def some(self, z: Tensor, base: Mapping[str, Tensor], names: frozenset[str]) -> dict[str, Tensor]:
        """The weights in `names` alone, without generating the others."""
        z = _widened(z)
        chosen = [spec for spec in self._specs if spec.name in names]
        return self._assembled(z, base, ((spec, self.mapper.rows(z, *self._ranges[spec.name])) for spec in chosen))

    def _assembled(
        self, z: Tensor, base: Mapping[str, Tensor], pieces: Iterable[tuple[ParameterSpec, Tensor]]
    ) -> dict[str, Tensor]:
        lead = z.shape[:-1]
        scaled = {spec: piece.reshape(lead + spec.shape) for spec, piece in pieces}
        if self.modulation is None:
            return {
                spec.name: torch.add(base[spec.name], _but_fixed_row(spec, piece), alpha=spec.scale).to(
                    base[spec.name].dtype
                )
                for spec, piece in scaled.items()
            }
        delta = self.modulation({spec.name: piece * spec.scale for spec, piece in scaled.items()}, z, base)
        return {
            spec.name: (base[spec.name] + _but_fixed_row(spec, delta[spec.name])).to(base[spec.name].dtype)
            for spec in scaled
        }


def _widened(z: Tensor) -> Tensor:
    return z if z.dtype == torch.float64 else z.float()


def _but_fixed_row(spec: ParameterSpec, delta: Tensor) -> Tensor:
    if spec.fixed_row is None:
        return delta
    row = torch.tensor([spec.fixed_row], device=delta.device)
    return delta.index_fill(-len(spec.shape), row, 0.0)
