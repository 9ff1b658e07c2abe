"""What all models have in common that look at a window of snapshots."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mapping_core import DynamicsModel
from mapping_core.interfaces.dynamics import Proposal
from mapping_plugin_dynamics._losses import LossTrend
from mapping_plugin_dynamics._noise import Noise
from mapping_plugin_dynamics._window import Window

if TYPE_CHECKING:
    from mapping_core.contexts import DynamicsContext
    from mapping_plugin_dynamics import _Windowed


class WindowedModel(DynamicsModel):
    """Proposes sums of the snapshots in its window, with weights that `weights` gives.

    After a jump that was kept the window goes along with it. After one that was not, or an
    observation that is not finite, it starts again: it led to nothing, and would again.
    """

    def __init__(self, config: _Windowed, context: DynamicsContext) -> None:
        self.window = Window(config.snapshots, config.stride, context.size)
        self._losses = LossTrend(config.snapshots * config.stride)

    @abstractmethod
    def weights(self, ahead: Tensor) -> Tensor:
        """Weights [k, n] of the snapshots in the displacements `ahead` [k] intervals from `window.now`; float64."""

    def observe(self, latent: Tensor, loss: float, step: int) -> None:
        if not math.isfinite(loss):
            self._forget()
            return
        if not self.window.add(latent, step):
            self._losses.clear()
        self._losses.add(loss)

    @torch.no_grad()
    def propose(self, horizons: Sequence[int]) -> list[Proposal]:
        if not (horizons and self.window.full):
            return []
        window = self.window
        ahead = torch.tensor(horizons, dtype=torch.float64) / window.spacing
        weights = self.weights(ahead)
        noise = Noise.of(window.scatter(), window.count)
        variances = noise.variances(weights, window.now, ahead).tolist()
        return [
            Proposal(horizon=horizon, delta=delta, forecast=forecast, variance=variance)
            for horizon, delta, forecast, variance in zip(
                horizons, self._deltas(weights), self._losses.forecasts(horizons), variances, strict=True
            )
        ]

    def feedback(self, accepted: Proposal | None, measured: float | None) -> None:
        if accepted is None:
            self._forget()
        else:
            self.window.shift(accepted.delta)
            self._losses.clear()  # those of another place

    def state_dict(self) -> dict[str, Any]:
        return {"window": self.window.state_dict(), **self._losses.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.window.load_state_dict(state["window"])
        self._losses.load_state_dict(state)

    def _deltas(self, weights: Tensor) -> list[Tensor]:
        return [delta.clone() for delta in self.window.combine(weights)]

    def _forget(self) -> None:
        self.window.clear()
        self._losses.clear()
