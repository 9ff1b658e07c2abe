"""LinUCB: which arm to pull, when what it gives depends on where one stands.

Li, Chu, Langford and Schapire, "A contextual-bandit approach to personalized news article recommendation" (WWW 2010),
algorithm 1, arms with a model each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


class LinUCB:
    """A ridge regression of rewards for each arm, and an upper confidence bound of what it would give.

    >>> bandit = LinUCB(arms=2, features=1, alpha=0.1, ridge=1.0)
    >>> for _ in range(20):
    ...     bandit.learn(0, [1.0], -0.5)
    ...     bandit.learn(1, [1.0], 0.5)
    >>> [round(bound, 2) for bound in bandit.bounds([1.0])]
    [-0.45, 0.5]
    """

    def __init__(self, *, arms: int, features: int, alpha: float, ridge: float) -> None:
        self._alpha = alpha
        self._moments = ridge * torch.eye(features, dtype=torch.float64).repeat(arms, 1, 1)
        self._rewards = torch.zeros(arms, features, dtype=torch.float64)

    def bounds(self, context: Sequence[float]) -> list[float]:
        """The upper confidence bound of every arm's reward here."""
        x = torch.tensor(context, dtype=torch.float64)
        inverse = torch.linalg.inv(self._moments)
        means = torch.einsum("aij,aj,i->a", inverse, self._rewards, x)
        widths = torch.einsum("aij,i,j->a", inverse, x, x).sqrt()
        found: list[float] = (means + self._alpha * widths).tolist()
        return found

    def learn(self, arm: int, context: Sequence[float], reward: float) -> None:
        """Note what an arm gave."""
        x = torch.tensor(context, dtype=torch.float64)
        self._moments[arm] += torch.outer(x, x)
        self._rewards[arm] += reward * x

    def state_dict(self) -> dict[str, Tensor]:
        """All that it has learned."""
        return {"moments": self._moments.clone(), "rewards": self._rewards.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave."""
        self._moments, self._rewards = state["moments"].clone(), state["rewards"].clone()
