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


class Verdict(Enum):
    """What became of a proposed jump; ACCEPTED moved what trains, every other one left all as it was.

    REJECTED was probed and did not lower the loss surely enough; NON_FINITE had a number or a loss that is
    NaN or infinite. NO_PROPOSAL, WAITING (after a rejection) and NO_COMPUTE (the share for probes is used up)
    were not probed. ROLLED_BACK was accepted, and undone when the steps after it failed.
    """

    ACCEPTED = "accepted"
    REJECTED = "rejected"
    NON_FINITE = "non_finite"
    NO_PROPOSAL = "no_proposal"
    WAITING = "waiting"
    NO_COMPUTE = "no_compute"
    ROLLED_BACK = "rolled_back"


@define(frozen=True, kw_only=True)
class JumpOutcome:
    """What a jump did, and what was measured of it; None where it was not.

    `before` and `after` are mean losses over the probe's samples, at the averaged position and at the judged
    proposal; `bound` is the upper confidence bound of the mean of their differences, `forecast` what
    the dynamics model had said of `after`. `seconds` is what proposing and probing took.
    """

    verdict: Verdict
    seconds: float = 0.0
    horizon: int | None = None
    before: float | None = None
    after: float | None = None
    bound: float | None = None
    forecast: float | None = None

    @property
    def forecast_error(self) -> float | None:
        """The forecast loss minus the measured one; None where either is missing."""
        return None if self.forecast is None or self.after is None else self.forecast - self.after

    @property
    def probed(self) -> bool:
        """Whether a loss was measured."""
        return self.after is not None


@define(frozen=True, kw_only=True)
class Progress:
    """Where a run stands when its policy is asked: steps done, steps planned, the last phase and loss."""

    step: int
    total_steps: int | None
    phase: Phase | None
    loss: float | None


@define(frozen=True)
class PhaseDecision:
    """A policy's answer: the next phase, and its length in steps (None: to the end of the run).

    A PREDICT phase is one of two. With `horizons` it is a guarded jump to where one of so many steps
    would lead: it makes no optimiser step, and `steps` stays None. With `keep` it is ordinary steps whose backward
    passes are made for that share of each batch, chosen by importance.

    >>> PhaseDecision(Phase.FULL, 40)
    PhaseDecision(phase=<Phase.FULL: 'full'>, steps=40, horizons=(), keep=None)
    >>> PhaseDecision(Phase.PREDICT, horizons=(5, 10)).is_jump
    True
    """

    phase: Phase
    steps: int | None = None
    horizons: tuple[int, ...] = ()
    keep: float | None = None

    @property
    def is_jump(self) -> bool:
        """Whether it asks for a jump."""
        return bool(self.horizons)

    def fault(self) -> str:
        """What is wrong with it, empty if nothing is."""
        predicts = self.phase is Phase.PREDICT
        if predicts is (self.is_jump is (self.keep is not None)):
            ways = "either horizons or keep" if predicts else "neither horizons nor keep"
            return f"a {self.phase.name} phase has {ways}"
        if self.steps is not None and (self.is_jump or self.steps < 1):
            return f"a {self.phase.name} phase of {self.steps} steps" + (" is no jump" if self.is_jump else "")
        if any(horizon < 1 for horizon in self.horizons):
            return f"a jump over {min(self.horizons)} steps"
        if self.keep is not None and not 0.0 < self.keep < 1.0:
            return f"a share of {self.keep} to keep, which must lie between 0 and 1"
        return ""


@define(frozen=True, kw_only=True)
class PhaseOutcome:
    """What a phase did: its optimiser steps, their mean loss, the seconds they took.

    `seconds` is the time inside steps, without validation or checkpoints between them; `step_seconds` is
    the median step's. `jump` is of a PREDICT phase that is a jump, and such a phase has no steps and no `loss`. `gain`
    is of a sampled one: of how many samples without selection a kept one is worth, as the mean
    over its batches of min(1 + CV^2, 1 / keep), CV being the scores' coefficient of variation. `prediction_error` and
    `cosine` are of a CORRECT phase: the displacement that was predicted for its steps beside the one they made,
    as the distance of the two relative to the real one (1 is what predicting no movement has) and by their angle.
    """

    phase: Phase
    steps: int
    loss: float | None
    seconds: float
    step_seconds: float | None = None
    jump: JumpOutcome | None = None
    gain: float | None = None
    prediction_error: float | None = None
    cosine: float | None = None


class PhasePolicy(ABC):
    """Decides the next phase whenever one ends; draws nothing from the global random state."""

    @abstractmethod
    def next(self, progress: Progress) -> PhaseDecision:
        """Return the next phase.

        It must be one that `LEGAL_TRANSITIONS` allows after `progress.phase`, and a jump may not
        follow a jump with no step between them.
        """

    def feedback(self, outcome: PhaseOutcome) -> None:  # noqa: B027 - overriding it is a choice
        """Learn what the phase just ended did."""

    def state_dict(self) -> dict[str, Any]:
        """What must survive a restart: plain values and tensors."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # noqa: B027 - overriding it is a choice
        """Take back what `state_dict` gave."""
