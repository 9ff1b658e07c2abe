"""`dmd`: optimised dynamic mode decomposition in few principal directions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mapping_core.random import RandomStream
from mapping_plugin_dynamics._modes import Modes
from mapping_plugin_dynamics._subspace import Principal
from mapping_plugin_dynamics._windowed import WindowedModel

if TYPE_CHECKING:
    from mapping_core.contexts import DynamicsContext
    from mapping_plugin_dynamics import Dmd


class DmdModel(WindowedModel):
    """``delta(h) = sum over modes of b (lambda^(now + h) - lambda^now) / (lambda - 1)``, |lambda| <= 1."""

    def __init__(self, config: Dmd, context: DynamicsContext) -> None:
        super().__init__(config, context)
        self._rank = config.rank
        self._bags = config.bags
        self._seed = context.seed

    def eigenvalues(self) -> Tensor:
        """Those of the full window, complex128, by interval between snapshots; none where it stood still."""
        principal = Principal.of(self.window, self._rank)
        return Modes.fitted(principal.coordinates).eigenvalues

    def weights(self, ahead: Tensor) -> Tensor:
        principal = Principal.of(self.window, self._rank)
        coordinates = principal.coordinates
        if not coordinates.numel():
            return torch.zeros(len(ahead), self.window.count, dtype=torch.float64)
        times = torch.arange(self.window.count, dtype=torch.float64)
        at = self.window.now + torch.cat((torch.zeros(1, dtype=torch.float64), ahead))
        modes = Modes.fitted(coordinates)
        fits = [(modes, times)]
        if self._bags:
            bags = [bag.sort().values for bag in self._drawn()]
            fits = [(Modes.refined(modes, coordinates[bag], times[bag]), times[bag]) for bag in bags]
        moves = torch.zeros(len(ahead), coordinates.shape[1], dtype=torch.float64)
        for found, seen in fits:
            values = found.values(coordinates[seen.long()], seen, at)
            moves += _shortened(values[1:] - values[:1], ahead, coordinates) / len(fits)
        return principal.weights_of(moves)

    def _drawn(self) -> Tensor:
        """Three quarters of the snapshots for each bag, [bags, m]; for the same window the same."""
        count = self.window.count
        uniform = RandomStream(self._seed, purpose=self.window.seen_at % 2**32).uniform(self._bags * count)
        return uniform.view(self._bags, count).argsort(1)[:, : 3 * count // 4]


def _shortened(moves: Tensor, ahead: Tensor, coordinates: Tensor) -> Tensor:
    """Scale down what goes further than twice the window's extent, or than twice its speed for so long.

    No mode grows, but two that cancel inside the window may part after it.
    """
    extent = torch.linalg.vector_norm(coordinates.amax(0) - coordinates.amin(0))
    limits = 2 * extent * (ahead / (len(coordinates) - 1)).clamp(min=1.0)
    lengths = torch.linalg.vector_norm(moves, dim=1).clamp(min=torch.finfo(torch.float64).tiny)
    shortened: Tensor = moves * (limits / lengths).clamp(max=1.0)[:, None]
    return shortened
