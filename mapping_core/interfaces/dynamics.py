"""The dynamics model: watches the latent's trajectory and proposes jumps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from attrs import define

if TYPE_CHECKING:
    from torch import Tensor


@define(frozen=True, kw_only=True, eq=False)
class Proposal:
    """One possible jump: where `horizon` steps would lead.

    `delta` [size] is the whole displacement, to be added once, of the observed latent's dtype and
    device; `forecast` is the loss expected after it; `variance` that of the error of `delta`,
    as a mean over its numbers. Either is None when the model makes no such statement.
    """

    horizon: int
    delta: Tensor
    forecast: float | None = None
    variance: float | None = None


class DynamicsModel(ABC):
    """A model of how what trains moves: proposes jumps along its trajectory.

    It is built for a vector of `DynamicsContext.size` numbers: the latent of a mapped model, with
    whatever else its optimiser holds behind it; all trained weights of any other model. It sees detached
    tensors, keeps no graph, and draws nothing from a global random state: `DynamicsContext.seed` is its own.

    A run calls `observe` after each real optimiser step, `propose` at the start of a PREDICT phase, and
    `feedback` once for each `propose` that gave something. A step never calls `observe` twice, and
    a jump is no step: the vector moves by the kept `delta` between two observations.
    """

    @abstractmethod
    def observe(self, latent: Tensor, loss: float, step: int) -> None:
        """Take note of the vector [size] and the batch's loss after optimiser step `step`.

        `latent` is the caller's memory and will be written to: copy what is kept.
        """

    @abstractmethod
    def propose(self, horizons: Sequence[int]) -> list[Proposal]:
        """Return at most one proposal for each horizon (in steps, each at least 1), in their order.

        An empty list while too little was seen. Each `delta` is a tensor of its own and starts at the vector
        last observed. What is not finite is the caller's to reject. Proposing twice gives the same.
        """

    def feedback(self, accepted: Proposal | None, measured: float | None) -> None:  # noqa: B027 - overriding it is a choice
        """Learn which of the last proposals was kept (None: the vector is where it was), and the probed loss after it.

        After an acceptance the vector has moved by ``accepted.delta``: shift what is kept by as much,
        so that the jump is not taken for a step. `measured` is the mean loss of the probe's samples at
        the proposal that was judged, kept or not; None when nothing was judged.
        """

    def state_dict(self) -> dict[str, Any]:
        """What must survive a restart, or be put back after a rollback: plain values and tensors."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # noqa: B027 - overriding it is a choice
        """Take back what `state_dict` gave; its tensors may come on the CPU."""
