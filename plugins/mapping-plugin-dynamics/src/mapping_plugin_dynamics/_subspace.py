"""`subspace`: few principal directions, along each a movement that slows down."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from attrs import define
from torch import Tensor

from mapping_plugin_dynamics._relaxation import relaxation_weights
from mapping_plugin_dynamics._windowed import WindowedModel

if TYPE_CHECKING:
    from mapping_core.contexts import DynamicsContext
    from mapping_plugin_dynamics import Subspace
    from mapping_plugin_dynamics._window import Window

#: Directions in which a window moved less than this share of its largest movement are rounding.
_SMALLEST = 1e-5
#: Times the median of the sizes, the threshold below which a direction is noise, where numbers are many more than
#: snapshots: Gavish and Donoho, "The optimal hard threshold for singular values is 4/sqrt(3)", IEEE Trans. Inf.
#: Theory 2014 (arXiv 1305.5870).
_THRESHOLD = 1.43


@define(frozen=True)
class Principal:
    """The window's principal directions: unit vectors [n, r] over the snapshots, and sizes [r], largest first.

    The i-th snapshot stands at ``sizes * vectors[i]`` along them, seen from the window's mean.
    """

    vectors: Tensor
    sizes: Tensor

    @classmethod
    def of(cls, window: Window, rank: int) -> Principal:
        """At most `rank` directions; fewer where the others are noise, none where the window stood still."""
        squares, vectors = torch.linalg.eigh(window.gram())
        sizes = squares.clamp(min=0.0).sqrt().flip(0)
        kept = sizes > torch.maximum(_SMALLEST * sizes[0], _THRESHOLD * sizes.median())
        return cls(vectors.flip(1)[:, kept][:, :rank], sizes[kept][:rank])

    @property
    def coordinates(self) -> Tensor:
        """Where each snapshot stands, [n, r]."""
        return self.vectors * self.sizes

    def weights_of(self, moves: Tensor) -> Tensor:
        """Weights [k, n] of the snapshots that give the displacements `moves` [k, r] along the directions."""
        weights = (moves / self.sizes) @ self.vectors.T
        return weights - weights.mean(1, keepdim=True)  # the directions are made of snapshots less their mean


class SubspaceModel(WindowedModel):
    """``delta(h) = sum over directions u of u (c(now + h) - c(now))``, c the curve that slows down along u."""

    def __init__(self, config: Subspace, context: DynamicsContext) -> None:
        super().__init__(config, context)
        self._rank = config.rank

    def weights(self, ahead: Tensor) -> Tensor:
        window = self.window
        principal = Principal.of(window, self._rank)
        times = torch.arange(window.count, dtype=torch.float64)
        at = window.now + torch.cat((torch.zeros(1, dtype=torch.float64), ahead))
        values = relaxation_weights(principal.coordinates.T, times, at)  # [r, 1 + k, n]
        moves = torch.einsum("rkn,nr->kr", values[:, 1:] - values[:, :1], principal.coordinates)
        return principal.weights_of(moves)
