"""`kalman`: a bank of filters of the velocity."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mapping_core import DynamicsModel
from mapping_core.interfaces.dynamics import Proposal
from mapping_plugin_dynamics._losses import LossTrend
from mapping_plugin_dynamics._window import check_kept, check_shape, copied, widened

if TYPE_CHECKING:
    from mapping_core.contexts import DynamicsContext
    from mapping_plugin_dynamics import Kalman

#: Of each filter: the variance that an interval adds to the velocity, in units of the steps' noise, and the share of
#: the velocity that an interval leaves.
_FILTERS = [(drift, persistence) for persistence in (1.0, 0.9) for drift in (1e-4, 1e-3, 1e-2, 1e-1)]
_FIRST = 1e3  # the velocity's variance before anything was seen: nothing is known of it
#: Steps that teach the filters what the velocity is, before their surprise counts: it would speak for whatever shrinks.
_LEARNING = 4


class KalmanModel(DynamicsModel):
    """``v' = rho v + w``, ``step = v + e``: what is seen of the velocity is a step with noise.

    The numbers of the vector share two variances, ``var e = s`` and ``var w = drift * s``; so a filter's gain is
    one number, and s is the mean of what it is surprised by.
    """

    def __init__(self, config: Kalman, context: DynamicsContext) -> None:
        self._config = config
        self._size = context.size
        self._losses = LossTrend(config.observations * config.stride)
        self._drift, self._persistence = torch.tensor(_FILTERS, dtype=torch.float64).unbind(1)
        self._last: Tensor | None = None
        self._last_at = 0
        self._seen_at = 0
        self._spacing = 0
        self._velocities: Tensor | None = None
        self._begin()

    @property
    def chosen(self) -> tuple[float, float]:
        """Drift and persistence of the filter that proposes."""
        return _FILTERS[self._likeliest()]

    @torch.no_grad()
    def observe(self, latent: Tensor, loss: float, step: int) -> None:
        check_shape(latent, self._size)
        if not math.isfinite(loss):
            self._forget()
            return
        self._losses.add(loss)
        in_order = self._last is None or step > self._seen_at
        gap = step - self._last_at
        if self._last is not None and in_order and gap < self._config.stride:
            self._seen_at = step
            return
        if not bool(latent.isfinite().all()):
            self._forget()
            return
        if not in_order or self._spacing not in (0, gap):
            self._forget()
            self._losses.add(loss)
        if self._last is not None:
            self._spacing = gap
            self._update(widened(latent) - widened(self._last.to(latent)))
        self._last = latent.detach().clone()
        self._last_at = self._seen_at = step

    @torch.no_grad()
    def propose(self, horizons: Sequence[int]) -> list[Proposal]:
        if not horizons or self._velocities is None or self._seen < self._config.observations:
            return []
        best = self._likeliest()
        noise = float(self._surprise[best] / self._weight)
        proposals = []
        for horizon, forecast in zip(horizons, self._losses.forecasts(horizons), strict=True):
            length, variance = self._ahead(best, horizon / self._spacing)
            assert self._last is not None
            delta = (length * self._velocities[best]).to(self._last.dtype)
            proposals.append(Proposal(horizon=horizon, delta=delta, forecast=forecast, variance=noise * variance))
        return proposals

    def feedback(self, accepted: Proposal | None, measured: float | None) -> None:
        if accepted is None:
            self._forget()
        elif self._last is not None:
            self._last += accepted.delta.to(self._last)
            self._losses.clear()

    def state_dict(self) -> dict[str, Any]:
        return {
            "last": copied(self._last),
            "velocities": copied(self._velocities),
            "variances": self._variances.clone(),
            "surprise": self._surprise.clone(),
            "spread": self._spread.clone(),
            "weight": self._weight,
            "seen": self._seen,
            "last_at": self._last_at,
            "seen_at": self._seen_at,
            "spacing": self._spacing,
            **self._losses.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        check_kept(state["last"], self._size)
        self._last, self._velocities = copied(state["last"]), copied(state["velocities"])
        self._variances, self._surprise, self._spread = (
            state[name].clone() for name in ("variances", "surprise", "spread")
        )
        self._weight, self._seen = state["weight"], state["seen"]
        self._last_at, self._seen_at, self._spacing = state["last_at"], state["seen_at"], state["spacing"]
        self._losses.load_state_dict(state)

    def _begin(self) -> None:
        self._variances = torch.full((len(_FILTERS),), _FIRST, dtype=torch.float64)
        self._surprise = torch.zeros(len(_FILTERS), dtype=torch.float64)
        self._spread = torch.zeros(len(_FILTERS), dtype=torch.float64)
        self._weight = 0.0
        self._seen = 0

    def _forget(self) -> None:
        self._last, self._velocities, self._spacing = None, None, 0
        self._losses.clear()
        self._begin()

    def _update(self, step: Tensor) -> None:
        """Predict, compare with the step [size] that was made, and correct."""
        if self._velocities is None:
            self._velocities = torch.zeros(len(_FILTERS), self._size, dtype=step.dtype, device=step.device)
        velocities = self._velocities = self._velocities.to(step)
        predicted = self._persistence**2 * self._variances + self._drift
        velocities *= self._persistence.to(step)[:, None]
        errors = step - velocities
        squares = torch.linalg.vector_norm(errors, dim=1).cpu().double().square() / self._size
        gain = predicted / (predicted + 1.0)
        velocities.addcmul_(gain.to(step)[:, None], errors)
        self._variances = gain  # (1 - gain) * predicted, with noise of variance 1
        if self._seen >= _LEARNING:
            keep = 1.0 - 1.0 / self._config.memory
            self._surprise = keep * self._surprise + squares / (predicted + 1.0)
            self._spread = keep * self._spread + torch.log(predicted + 1.0)
            self._weight = keep * self._weight + 1.0
        self._seen += 1

    def _likeliest(self) -> int:
        """The filter of the highest likelihood, each with the noise's likeliest variance."""
        tiny = torch.finfo(torch.float64).tiny
        unlikelihood = torch.log(self._surprise / self._weight + tiny) + self._spread / self._weight
        return int(unlikelihood.argmin())

    def _ahead(self, which: int, intervals: float) -> tuple[float, float]:
        """How many velocities one goes in so many intervals, and the displacement's variance in units of the noise."""
        drift, persistence = _FILTERS[which]
        whole = max(1, math.ceil(intervals))
        # Each interval's velocity is added to all intervals from its own on.
        sums = torch.cumsum(persistence ** torch.arange(whole + 1, dtype=torch.float64), 0)
        length = float(sums[whole] - 1.0) * intervals / whole
        variance = length**2 * float(self._variances[which]) + intervals
        variance += drift * float(sums[:whole].square().sum()) * intervals / whole
        return length, variance
