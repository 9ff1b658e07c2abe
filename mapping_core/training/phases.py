"""Running a phase policy: asking it when a phase ends, and holding it to the legal transitions."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mapping_core.errors import PluginError
from mapping_core.interfaces.phase_policy import LEGAL_TRANSITIONS, Phase, PhaseOutcome, PhasePolicy, Progress

#: Phases whose steps are ordinary ones; the others need a dynamics model, and no trainer here runs them yet.
_ORDINARY = frozenset({Phase.WARMUP, Phase.FULL})

Answer = tuple[Phase, int | None]


class PhaseRunner:
    """Keeps the current phase of a run; `phase` is None before the first step.

    Every rank asks its own policy, and `broadcast` makes the first one's answer that of all:
    a policy may look at the time, which differs.
    """

    def __init__(
        self,
        policy: PhasePolicy,
        *,
        name: str,
        total_steps: int | None,
        broadcast: Callable[[Answer], Answer] = lambda answer: answer,
    ) -> None:
        self._policy = policy
        self._name = name
        self._total_steps = total_steps
        self._broadcast = broadcast
        self.phase: Phase | None = None
        self._left: int | None = 0
        self._done = 0
        self._losses: list[Tensor] = []
        self._started = 0.0

    def begin_step(self, step: int) -> tuple[Phase, bool]:
        """The phase of the step about to be made (`step` are done), and whether it has just begun."""
        if self._left is None or self._left > 0:
            assert self.phase is not None
            return self.phase, False
        previous = self.phase
        self.finish()
        progress = Progress(step=step, total_steps=self._total_steps, phase=previous, loss=self._last_loss())
        phase, length = self._broadcast(self._answer(progress))
        self._check(previous, phase, length)
        self.phase, self._left, self._done = phase, length, 0
        self._losses.clear()
        self._started = time.perf_counter()
        return phase, phase is not previous

    def end_step(self, loss: Tensor) -> None:
        """Count a step that has been made."""
        self._done += 1
        if self._left is not None:
            self._left -= 1
            self._losses.append(loss)

    def finish(self) -> None:
        """Tell the policy what the phase did; a phase without an end has nobody waiting for it."""
        if self.phase is None or not self._losses:
            return
        self._policy.feedback(
            PhaseOutcome(
                phase=self.phase,
                steps=self._done,
                loss=sum(float(loss) for loss in self._losses) / len(self._losses),
                seconds=time.perf_counter() - self._started,
            )
        )

    def state_dict(self) -> dict[str, Any]:
        """The phase at hand and the policy's own state; the seconds already spent in the phase are not kept."""
        return {
            "phase": None if self.phase is None else self.phase.value,
            "left": self._left,
            "done": self._done,
            "losses": [float(loss) for loss in self._losses],
            "policy": self._policy.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on in the phase of a `state_dict`."""
        self.phase = None if state["phase"] is None else Phase(state["phase"])
        self._left, self._done = state["left"], state["done"]
        self._losses = [torch.tensor(loss, dtype=torch.float64) for loss in state["losses"]]
        self._started = time.perf_counter()
        self._policy.load_state_dict(state["policy"])

    def _last_loss(self) -> float | None:
        return float(self._losses[-1]) if self._losses else None

    def _answer(self, progress: Progress) -> Answer:
        answer = self._policy.next(progress)
        if isinstance(answer, tuple) and len(answer) == 2:
            phase, length = answer
            if isinstance(phase, Phase) and (length is None or type(length) is int):
                return phase, length
        raise PluginError(f"phase policy {self._name!r} must answer (Phase, steps or None), it answered {answer!r}")

    def _check(self, previous: Phase | None, phase: Phase, length: int | None) -> None:
        if previous is not None and phase not in LEGAL_TRANSITIONS[previous]:
            raise PluginError(f"phase policy {self._name!r} asked for {phase.name} after {previous.name}")
        if length is not None and length < 1:
            raise PluginError(f"phase policy {self._name!r} asked for a {phase.name} phase of {length} steps")
        if phase not in _ORDINARY:
            raise PluginError(
                f"phase policy {self._name!r} asked for {phase.name}, which this version of the trainer does not run"
            )
