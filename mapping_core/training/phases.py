"""Running a phase policy: asking it when a phase ends, and holding it to the legal transitions."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any, Protocol

import torch
from attrs import asdict, evolve
from torch import Tensor

from mapping_core.errors import PluginError
from mapping_core.interfaces.phase_policy import (
    LEGAL_TRANSITIONS,
    JumpOutcome,
    Phase,
    PhaseDecision,
    PhaseOutcome,
    PhasePolicy,
    Progress,
    Verdict,
)

Jump = Callable[[tuple[int, ...]], JumpOutcome]


def _no_jump(horizons: tuple[int, ...]) -> JumpOutcome:
    return JumpOutcome(verdict=Verdict.NO_PROPOSAL)


class Measurement(Protocol):
    """What compares the steps of a CORRECT phase with what was predicted for them."""

    def begin(self, steps: int) -> None:
        """Predict the next `steps` steps."""

    def end(self, steps: int) -> tuple[float, float] | None:
        """The prediction's relative error and its cosine, `steps` steps later; None if that was not measured."""


class PhaseRunner:
    """Keeps the current phase of a run; `phase` is None before the first step.

    Every rank asks its own policy, and `broadcast` makes the first one's answer that of all:
    a policy may look at the time, which differs. `jump` makes the jump of a PREDICT phase, once, and
    `announce` is told of every phase that differs from the one before it.
    """

    def __init__(
        self,
        policy: PhasePolicy,
        *,
        name: str,
        total_steps: int | None,
        broadcast: Callable[[PhaseDecision], PhaseDecision] = lambda answer: answer,
        jump: Jump = _no_jump,
        announce: Callable[[Phase], None] = lambda phase: None,
    ) -> None:
        self._policy = policy
        self._name = name
        self._total_steps = total_steps
        self._broadcast = broadcast
        self.jump, self.announce = jump, announce
        self.measurement: Measurement | None = None
        self._decision: PhaseDecision | None = None
        self._left: int | None = 0
        self._done = 0
        self._forced = 0
        self._losses: list[Tensor] = []
        self._seconds: list[float] = []
        self._gains: list[float] = []
        self._started = 0.0
        #: What the phases of a length did, in their order; a phase to the run's end is none.
        self.outcomes: list[PhaseOutcome] = []

    @property
    def phase(self) -> Phase | None:
        """The phase at hand."""
        return None if self._decision is None else self._decision.phase

    @property
    def keep(self) -> float | None:
        """The share of each batch whose backward is made; None: all of it."""
        return None if self._decision is None else self._decision.keep

    def begin_step(self, step: int) -> Phase:
        """The phase of the step about to be made (`step` are done); jumps that come before it are made."""
        if self._left is None:
            assert self._decision is not None
            return self._decision.phase
        while self._left == 0:
            self._begin_phase(step)
        self._started = time.perf_counter()
        assert self._decision is not None
        return self._decision.phase

    def end_step(self, loss: Tensor, gain: float | None = None) -> None:
        """Count a step that has been made; `gain` is that of its sampling."""
        if self._left is None:
            return
        self._done += 1
        self._seconds.append(time.perf_counter() - self._started)
        self._losses.append(loss)
        if gain is not None and self.keep is not None:
            self._gains.append(gain)
        self._left = max(0, self._left - 1)  # it may have been ended within its step

    def end_now(self) -> None:
        """Let the phase at hand end here, for what makes going on in it senseless."""
        if self._left is not None:
            self._left = 0

    def force_full(self, steps: int) -> None:
        """Train fully for `steps` steps before the policy is asked again, in the place of a phase that predicts."""
        self._forced = steps
        if self.phase in (Phase.PREDICT, Phase.CORRECT):
            self._left = 0

    def finish(self) -> None:
        """Tell the policy what the phase did; one without an end has nobody waiting for it."""
        if self._decision is None or not self._losses:
            return
        losses = [float(loss) for loss in self._losses]
        measured = None
        if self.measurement is not None and self._decision.phase is Phase.CORRECT:
            measured = self.measurement.end(self._done)
        self._tell(
            PhaseOutcome(
                phase=self._decision.phase,
                steps=self._done,
                loss=sum(losses) / len(losses),
                seconds=sum(self._seconds),
                step_seconds=statistics.median(self._seconds) if self._seconds else None,
                gain=sum(self._gains) / len(self._gains) if self._gains else None,
                prediction_error=None if measured is None else measured[0],
                cosine=None if measured is None else measured[1],
            )
        )

    def take_back(self) -> None:
        """Note that the last jump was undone, and tell the policy."""
        for index in range(len(self.outcomes) - 1, -1, -1):
            jump = self.outcomes[index].jump
            if jump is not None and jump.verdict is Verdict.ACCEPTED:
                undone = evolve(self.outcomes[index], jump=evolve(jump, verdict=Verdict.ROLLED_BACK))
                self.outcomes[index] = undone
                self._policy.feedback(undone)
                return

    def _begin_phase(self, step: int) -> None:
        previous = self._decision
        self.finish()
        progress = Progress(
            step=step,
            total_steps=self._total_steps,
            phase=None if previous is None else previous.phase,
            loss=float(self._losses[-1]) if self._losses else None,
        )
        if self._forced and previous is not None:
            decision, self._forced = PhaseDecision(Phase.FULL, self._forced), 0
        else:
            decision = self._broadcast(self._answer(progress))
        self._check(previous, decision, jumped=previous is not None and previous.is_jump)
        self._decision, self._left, self._done = decision, decision.steps, 0
        self._losses, self._seconds, self._gains = [], [], []
        if previous is None or decision.phase is not previous.phase:
            self.announce(decision.phase)
        if self.measurement is not None and decision.phase is Phase.CORRECT and decision.steps is not None:
            self.measurement.begin(decision.steps)
        if decision.is_jump:
            self._left = 0
            jump = self.jump(decision.horizons)
            self._tell(PhaseOutcome(phase=decision.phase, steps=0, loss=None, seconds=jump.seconds, jump=jump))

    def _tell(self, outcome: PhaseOutcome) -> None:
        self.outcomes.append(outcome)
        self._policy.feedback(outcome)

    def _answer(self, progress: Progress) -> PhaseDecision:
        answer = self._policy.next(progress)
        if not isinstance(answer, PhaseDecision):
            raise PluginError(f"phase policy {self._name!r} must answer a PhaseDecision, it answered {answer!r}")
        return answer

    def _check(self, previous: PhaseDecision | None, decision: PhaseDecision, *, jumped: bool) -> None:
        what = f"phase policy {self._name!r} asked for"
        if previous is None and decision.phase not in (Phase.WARMUP, Phase.FULL):
            raise PluginError(f"{what} {decision.phase.name} before any step")
        if previous is not None and decision.phase not in LEGAL_TRANSITIONS[previous.phase]:
            raise PluginError(f"{what} {decision.phase.name} after {previous.phase.name}")
        if jumped and decision.is_jump:
            raise PluginError(f"{what} a jump after a jump, with no step between them")
        if fault := decision.fault():
            raise PluginError(f"{what} {fault}")

    def state_dict(self) -> dict[str, Any]:
        """The phase at hand, those that were, and the policy's own state."""
        decision = self._decision
        return {
            "decision": None
            if decision is None
            else [decision.phase.value, decision.steps, list(decision.horizons), decision.keep],
            "left": self._left,
            "done": self._done,
            "forced": self._forced,
            "losses": [float(loss) for loss in self._losses],
            "seconds": list(self._seconds),
            "gains": list(self._gains),
            "outcomes": [_outcome_state(each) for each in self.outcomes],
            "policy": self._policy.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on in the phase of a `state_dict`."""
        self._decision = None
        if state["decision"] is not None:
            phase, steps, horizons, keep = state["decision"]
            self._decision = PhaseDecision(Phase(phase), steps, tuple(horizons), keep)
        self._left, self._done = state["left"], state["done"]
        self._forced = state["forced"]
        self._losses = [torch.tensor(loss, dtype=torch.float64) for loss in state["losses"]]
        self._seconds, self._gains = list(state["seconds"]), list(state["gains"])
        self.outcomes[:] = [_outcome(each) for each in state["outcomes"]]
        self._policy.load_state_dict(state["policy"])


def _outcome_state(outcome: PhaseOutcome) -> dict[str, Any]:
    return asdict(
        outcome, value_serializer=lambda _, __, value: value.value if isinstance(value, Phase | Verdict) else value
    )


def _outcome(state: dict[str, Any]) -> PhaseOutcome:
    jump = state["jump"]
    if jump is not None:
        jump = JumpOutcome(**{**jump, "verdict": Verdict(jump["verdict"])})
    return PhaseOutcome(**{**state, "phase": Phase(state["phase"]), "jump": jump})
