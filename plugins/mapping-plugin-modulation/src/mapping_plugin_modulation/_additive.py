"""The modulation `additive`: the latent added to the mapping's rows."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from mapping_core import Modulation
from mapping_core.contexts import ModulationContext


class AdditiveModulation(Modulation):
    """``(G + alpha 1 z') z`` in place of ``G z``: the weight modulation of "Mapping Networks" (arXiv 2602.19134).

    Since ``(G + alpha 1 z') z = G z + alpha ||z||^2``, every weight gets the same number,
    times its layer's scale, and nothing is multiplied out: that is the closed form used
    here, for any mapper. A number common to all weights carries little.
    """

    def __init__(self, context: ModulationContext, *, alpha: float) -> None:
        super().__init__()
        self.alpha = alpha
        self._scales = {spec.name: spec.scale for spec in context.parameters}

    def forward(self, delta: dict[str, Tensor], z: Tensor, base: Mapping[str, Tensor]) -> dict[str, Tensor]:
        common = self.alpha * z.square().sum(-1)
        return {
            name: piece + self._scales[name] * common.reshape(common.shape + (1,) * (piece.ndim - common.ndim))
            for name, piece in delta.items()
        }
