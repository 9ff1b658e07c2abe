"""`Expansion`: one latent through one mapper into the parameters it feeds.

The piece that strategies are made of: `slvt` has one, `layerwise` one a layer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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
        self.names = tuple(spec.name for spec in parameters)
        self._shapes = tuple(spec.shape for spec in parameters)
        self._sizes = [spec.numel for spec in parameters]
        self._scales = tuple(spec.scale for spec in parameters)

    @property
    def latent_size(self) -> int:
        """How many numbers the latent has."""
        return self.mapper.in_features

    def forward(self, z: Tensor, base: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Weights by name for a latent [..., d]; computed in float32 (float64 for float64 latents)."""
        z = z if z.dtype == torch.float64 else z.float()
        lead = z.shape[:-1]
        pieces = torch.split(self.mapper(z), self._sizes, dim=-1)
        shaped = (piece.reshape(lead + shape) for piece, shape in zip(pieces, self._shapes, strict=True))
        if self.modulation is None:
            return {
                name: torch.add(base[name], piece, alpha=scale).to(base[name].dtype)
                for name, piece, scale in zip(self.names, shaped, self._scales, strict=True)
            }
        delta = {name: piece * scale for name, piece, scale in zip(self.names, shaped, self._scales, strict=True)}
        delta = self.modulation(delta, z, base)
        return {name: (base[name] + delta[name]).to(base[name].dtype) for name in self.names}
