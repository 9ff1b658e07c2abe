"""The noise of a trajectory, and what it does to a forecast made of its snapshots."""

from __future__ import annotations

import torch
from attrs import define
from torch import Tensor


@define(frozen=True)
class Noise:
    """Two kinds of noise around a constant velocity, each as the variance of one number.

    `wandering` is what each interval between two snapshots adds for good, as mini-batches do;
    `jitter` is around the path and leaves no trace in it.
    """

    wandering: float
    jitter: float

    @classmethod
    def of(cls, scatter: tuple[float, float], count: int) -> Noise:
        """Tell both apart in a `Window.scatter`: what wanders makes steps independent, jitter takes them back.

        Unbiased, before it is cut at 0, where the velocity is constant; a path that bends counts as wandering.
        """
        m = count - 1
        centre = torch.eye(m, dtype=torch.float64) - 1 / m
        beside = torch.zeros(m, m, dtype=torch.float64)
        beside.diagonal(1).fill_(1.0)
        # Covariances of the steps: the identity times wandering, and this times jitter.
        taken_back = 2 * torch.eye(m, dtype=torch.float64) - beside - beside.T
        expected = torch.stack(
            [
                torch.stack([(centre @ by @ centre @ of).trace() for of in (centre, taken_back)])
                for by in (centre, beside)
            ]
        )
        both: list[float] = torch.linalg.solve(expected, torch.tensor(scatter, dtype=torch.float64)).tolist()
        if both[1] < 0:
            return cls(wandering=scatter[0] / float(expected[0, 0]), jitter=0.0)
        if both[0] < 0:
            return cls(wandering=0.0, jitter=scatter[0] / float(expected[0, 1]))
        return cls(wandering=both[0], jitter=both[1])

    def variances(self, weights: Tensor, now: float, ahead: Tensor) -> Tensor:
        """Mean squared error [k] of displacements that are sums of snapshots with `weights` [k, n], as one number's.

        `now` is the place of the last observation, where the displacements begin, and `ahead` [k] how much later they
        end, both in intervals between snapshots. The weights are taken as given: where they were fitted to the
        snapshots, the error is larger.
        """
        count = weights.shape[1]
        later = weights.flip(1).cumsum(1).flip(1)[:, 1:]  # what moves all snapshots from the second on, third on, ...
        # The last snapshot's own jitter is also the starting point's, when the step at hand was kept.
        own = weights.clone()
        apart = now - (count - 1)
        if apart == 0:
            own[:, -1] += 1.0
        jitter = own.square().sum(1) + (1.0 if apart == 0 else 2.0)
        return self.wandering * (later.square().sum(1) + ahead) + self.jitter * jitter
