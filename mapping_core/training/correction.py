"""The CORRECT phase: its real steps beside those that were predicted, and what the corrector learns from both."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from mapping_core.interfaces.dynamics import DynamicsModel, Proposal
from mapping_core.training.residuals import Corrector, Residual
from mapping_core.training.trajectory import Trajectory


class Correction:
    """Measures how far off a dynamics model is, and corrects its proposals where that was shown to help.

    When a CORRECT phase begins, the model is asked where its steps will lead; when it has made all of them, the
    residual is what they did minus what was said. A phase of another length than was asked for measures nothing.
    """

    def __init__(self, dynamics: DynamicsModel, trajectory: Trajectory, step: Callable[[], int]) -> None:
        self._dynamics, self._trajectory, self._step = dynamics, trajectory, step
        self.corrector = Corrector()
        self._pending: tuple[Proposal, Tensor] | None = None  # what was predicted, and from where
        self._measured: float | None = None

    def corrected(self, proposals: Sequence[Proposal]) -> list[Proposal]:
        """The proposals as the corrector leaves them."""
        return [self.corrector.correct(each) for each in proposals]

    def begin(self, steps: int) -> None:
        """Ask the model where the next `steps` steps lead; it is told that nothing was kept."""
        proposals = self._dynamics.propose((steps,))
        self._pending = (proposals[0], self._trajectory.read()) if proposals else None
        if proposals:
            self._dynamics.feedback(None, None)

    def end(self, steps: int) -> tuple[float, float] | None:
        """Compare, and learn; the error and the cosine, or None if nothing was predicted for so many steps."""
        pending, self._pending = self._pending, None
        if pending is None or pending[0].horizon != steps:
            return None
        residual = Residual(
            step=self._step(),
            horizon=steps,
            predicted=pending[0].delta,
            actual=self._trajectory.read() - pending[1],
        )
        if not residual.actual.any():
            return None
        self.corrector.learn(residual)
        if not math.isfinite(residual.error):
            return None
        self._measured = residual.error
        return residual.error, residual.cosine

    def take_error(self) -> float | None:
        """The error last measured, once."""
        measured, self._measured = self._measured, None
        return measured

    def forget(self) -> None:
        """Measure nothing of the phase at hand: what trains was moved by more than its steps."""
        self._pending = None

    def state_dict(self) -> dict[str, Any]:
        """What was learned, and what is being compared."""
        pending = None
        if self._pending is not None:
            proposal, start = self._pending
            pending = [proposal.horizon, proposal.delta, start]
        return {"corrector": self.corrector.state_dict(), "pending": pending, "measured": self._measured}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave."""
        self.corrector.load_state_dict(state["corrector"])
        here, self._pending = self._trajectory.read(), None
        if state["pending"] is not None:
            horizon, delta, start = state["pending"]
            self._pending = Proposal(horizon=horizon, delta=delta.to(here)), start.to(here)
        self._measured = state["measured"]
