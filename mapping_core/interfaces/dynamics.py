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

    `delta` [d] is the whole displacement, to be added once; `forecast` is the loss
    expected after it; `variance` that forecast's variance. Either is None when the model
    makes no such statement.
    """

    horizon: int
    delta: Tensor
    forecast: float | None = None
    variance: float | None = None


class DynamicsModel(ABC):
    """A model of how the latent moves. It sees detached tensors and keeps no graph."""

    @abstractmethod
    def observe(self, z: Tensor, loss: float, step: int) -> None:
        """Take note of the latent [d] and the loss after optimiser step `step`; copy what is kept."""

    @abstractmethod
    def propose(self, horizons: Sequence[int]) -> list[Proposal]:
        """Return at most one proposal a horizon (in steps); an empty list while too little was seen."""

    def feedback(self, accepted: bool, measured: float | None) -> None:  # noqa: B027 - overriding it is a choice
        """Learn whether the last jump was kept, and the loss measured after it."""

    def state_dict(self) -> dict[str, Any]:
        """What must survive a restart: plain values and tensors."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # noqa: B027 - overriding it is a choice
        """Take back what `state_dict` gave."""
