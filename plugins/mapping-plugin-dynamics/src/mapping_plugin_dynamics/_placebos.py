"""`none` and `random`: what a real model must do better than."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mapping_core import DynamicsModel
from mapping_core.interfaces.dynamics import Proposal
from mapping_core.random import RandomStream
from mapping_plugin_dynamics._trends import LinearModel

if TYPE_CHECKING:
    from mapping_core.contexts import DynamicsContext
    from mapping_plugin_dynamics import Random


class NothingModel(DynamicsModel):
    """Has nothing to say."""

    def observe(self, latent: Tensor, loss: float, step: int) -> None:
        """Look away."""

    def propose(self, horizons: Sequence[int]) -> list[Proposal]:
        return []


class RandomModel(LinearModel):
    """Lengths, forecasts and variances of `linear`, along one random direction for each place of the run."""

    def __init__(self, config: Random, context: DynamicsContext) -> None:
        super().__init__(config, context)
        self._seed = context.seed

    def _deltas(self, weights: Tensor) -> list[Tensor]:
        deltas = super()._deltas(weights)
        direction = RandomStream(self._seed, purpose=self.window.seen_at % 2**32).normal(self.window.size)
        direction /= torch.linalg.vector_norm(direction)
        direction = direction.to(deltas[0])
        return [direction * torch.linalg.vector_norm(delta) for delta in deltas]
