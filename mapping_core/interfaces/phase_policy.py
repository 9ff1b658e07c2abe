"""The phase policy: which phase of training comes next, and for how long."""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import Enum
from typing import Any

from attrs import define


class Phase(Enum):
    """The phases of predictive training; an ordinary run is FULL from start to end."""

    WARMUP = "warmup"
    FULL = "full"
    PREDICT = "predict"
    CORRECT = "correct"


#: What may follow what. A phase may always be continued by the same phase.
LEGAL_TRANSITIONS: dict[Phase, frozenset[Phase]] = {
    Phase.WARMUP: frozenset({Phase.WARMUP, Phase.FULL}),
    Phase.FULL: frozenset({Phase.FULL, Phase.PREDICT}),
    Phase.PREDICT: frozenset({Phase.PREDICT, Phase.CORRECT, Phase.FULL}),
    Phase.CORRECT: frozenset({Phase.CORRECT, Phase.FULL, Phase.PREDICT}),
}


@define(frozen=True, kw_only=True)
class Progress:
    """Where a run stands when its policy is asked: steps done, steps planned, the last phase and loss."""

    step: int
    total_steps: int | None
    phase: Phase | None
    loss: float | None


@define(frozen=True, kw_only=True)
class PhaseOutcome:
    """What a phase did: its steps, the mean loss of its steps, the seconds it took.

    `accepted` says whether a PREDICT phase's jump was kept; None for every other phase.
    """

    phase: Phase
    steps: int
    loss: float
    seconds: float
    accepted: bool | None = None


class PhasePolicy(ABC):
    """Decides the next phase whenever one ends; draws nothing from the global random state."""

    @abstractmethod
    def next(self, progress: Progress) -> tuple[Phase, int | None]:
        """Return the next phase and its length in steps (None: to the end of the run).

        The phase must be one that `LEGAL_TRANSITIONS` allows after `progress.phase`; the
        length is at least 1.
        """

    def feedback(self, outcome: PhaseOutcome) -> None:  # noqa: B027 - overriding it is a choice
        """Learn what the phase just ended did."""

    def state_dict(self) -> dict[str, Any]:
        """What must survive a restart: plain values and tensors."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # noqa: B027 - overriding it is a choice
        """Take back what `state_dict` gave."""
