"""Jumps within a run: what trains is observed after each step, and moved where the guard allows it."""

from __future__ import annotations

import copy
import time
from typing import TYPE_CHECKING, Any

from attrs import evolve
from torch import Tensor

from mapping_core.interfaces.dynamics import DynamicsModel
from mapping_core.interfaces.phase_policy import JumpOutcome, Verdict
from mapping_core.training.correction import Correction
from mapping_core.training.engine import forward_of
from mapping_core.training.guard import Guard
from mapping_core.training.probes import ProbeBatches, Prober
from mapping_core.training.randomness import undisturbed
from mapping_core.training.snapshot import Snapshot
from mapping_core.training.trajectory import Trajectory

if TYPE_CHECKING:
    from mapping_core.training.config import PredictionConfig
    from mapping_core.training.loop import Loop


class Predictor:
    """Makes the jumps of a run, each at most once, and can take back the last one."""

    def __init__(
        self,
        loop: Loop,
        config: PredictionConfig,
        *,
        dynamics: DynamicsModel,
        trajectory: Trajectory,
        source: ProbeBatches,
        batch_size: int | None,
    ) -> None:
        self._loop = loop
        self._dynamics, self._trajectory, self._source = dynamics, trajectory, source
        self._rate_factor = config.rate_factor
        self.correction = Correction(dynamics, trajectory, lambda: loop.trainer.step)
        prober = Prober(loop.trainer, loop.fabric, forward_of(loop.fabric, loop.trainer.model))
        self.guard = Guard(config.guard, fabric=loop.fabric, prober=prober, source=source, batch_size=batch_size)
        self._decay = config.guard.average
        self._average: Tensor | None = None
        self._before: Snapshot | None = None  # the last accepted jump's
        self._halvings = 0  # of the horizons that are asked for
        #: What observing, proposing and probing took, in seconds of this process.
        self.seconds = 0.0

    def note(self, raw: Any) -> None:
        """Take note of a batch of training."""
        self._source.note(raw)

    def observe(self, loss: float, step: int, batches: int) -> None:
        """Take note of an optimiser step over `batches` batches."""
        started = time.perf_counter()
        here = self._trajectory.read()
        self._average = here.clone() if self._average is None else self._average.lerp_(here, 1.0 - self._decay)
        self._dynamics.observe(here, loss, step)
        self.guard.compute.earn(batches)
        self.seconds += time.perf_counter() - started

    def jump(self, horizons: tuple[int, ...]) -> JumpOutcome:
        """Propose, judge, and move what trains by the displacement that is kept, if one is."""
        started = time.perf_counter()
        step = self._loop.trainer.step
        horizons = tuple(dict.fromkeys(max(1, each >> self._halvings) for each in horizons))
        refusal = self.guard.may_try(step, len(horizons)) if self._average is not None else Verdict.NO_PROPOSAL
        outcome = self._tried(horizons, step) if refusal is None else JumpOutcome(verdict=refusal)
        seconds = time.perf_counter() - started
        self.seconds += seconds
        return evolve(outcome, seconds=seconds)

    def _tried(self, horizons: tuple[int, ...], step: int) -> JumpOutcome:
        assert self._average is not None
        self._before = None
        proposals = self.correction.corrected(self._dynamics.propose(horizons))
        with undisturbed(self._loop.loader):
            outcome, kept = self.guard.judge(
                proposals, horizons=len(horizons), step=step, trajectory=self._trajectory, average=self._average
            )
        if kept is not None:
            self._before = Snapshot.of(self._loop)
            self._trajectory.write(self._trajectory.read() + kept.delta)
            self._average += kept.delta
            self._loop.multiply_rate(self._rate_factor)
            self._halvings = max(0, self._halvings - 1)
        if proposals:
            self._dynamics.feedback(kept, outcome.after)
        return outcome

    def take_back(self) -> bool:
        """Undo the last accepted jump, with the steps after it; false if there is none to undo."""
        before, self._before = self._before, None
        if before is None:
            return False
        before.restore(self._loop)
        self._dynamics.feedback(None, None)
        self.correction.forget()
        self.guard.undo(self._loop.trainer.step)
        return True

    def settle(self) -> None:
        """The last jump stays: what it could be undone with is let go."""
        self._before = None

    @property
    def settled(self) -> bool:
        """Whether no jump could still be taken back."""
        return self._before is None

    def shorten(self) -> None:
        """Halve the horizons that are asked for; each accepted jump takes one halving back."""
        self._halvings = min(self._halvings + 1, 16)

    def memory(self) -> dict[str, Any]:
        """What predictions come from, for going back to it."""
        average = None if self._average is None else self._average.clone()
        return {"dynamics": copy.deepcopy(self._dynamics.state_dict()), "average": average}

    def remember(self, memory: dict[str, Any]) -> None:
        """Go back to a `memory`; what trains has gone back too."""
        average = memory["average"]
        self._average = None if average is None else average.to(self._trajectory.read())
        self._dynamics.load_state_dict(memory["dynamics"])
        self.correction.forget()
        self._before = None

    def state_dict(self) -> dict[str, Any]:
        """All that a run goes on from; what a jump could be undone with, on one rank alone."""
        before = self._before if self._loop.fabric.world_size == 1 else None
        return {
            "before": None if before is None else before.state_dict(),
            "memory": self.memory(),
            "halvings": self._halvings,
            "seconds": self.seconds,
            "guard": self.guard.state_dict(),
            "correction": self.correction.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave."""
        self.remember(state["memory"])
        self.seconds, self._halvings = state["seconds"], state["halvings"]
        self._before = None if state["before"] is None else Snapshot(**state["before"])
        self.guard.load_state_dict(state["guard"])
        self.correction.load_state_dict(state["correction"])
