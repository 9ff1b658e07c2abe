"""Jumps within a run: what trains is observed after each step, and moved where the guard allows it."""

from __future__ import annotations

import copy
import time
from typing import TYPE_CHECKING, Any

from attrs import define, evolve
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


@define(kw_only=True)
class _Before:
    """What an accepted jump is undone with."""

    run: Snapshot
    dynamics: dict[str, Any]
    average: Tensor
    raised: float

    def state_dict(self) -> dict[str, Any]:
        return {
            "run": self.run.state_dict(),
            "dynamics": self.dynamics,
            "average": self.average,
            "raised": self.raised,
        }

    @classmethod
    def from_state(cls, state: dict[str, Any], here: Tensor) -> _Before:
        return cls(**{**state, "run": Snapshot(**state["run"]), "average": state["average"].to(here)})


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
        self._before: _Before | None = None  # the last accepted jump
        #: What accepted jumps have multiplied the learning rate by.
        self.raised = 1.0
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
            self._before = _Before(
                run=Snapshot.of(self._loop),
                dynamics=copy.deepcopy(self._dynamics.state_dict()),
                average=self._average.clone(),
                raised=self.raised,
            )
            self._trajectory.write(self._trajectory.read() + kept.delta)
            self._average += kept.delta
            self._raise_rate(self._rate_factor)
        if proposals:
            self._dynamics.feedback(kept, outcome.after)
        return outcome

    def take_back(self) -> bool:
        """Undo the last accepted jump, with the steps after it; false if there is none to undo."""
        before, self._before = self._before, None
        if before is None:
            return False
        before.run.restore(self._loop)
        self._dynamics.load_state_dict(before.dynamics)
        self._dynamics.feedback(None, None)
        self.correction.forget()
        self._average, self.raised = before.average, before.raised
        self.guard.undo(self._loop.trainer.step)
        return True

    def settle(self) -> None:
        """The last jump stays: what it could be undone with is let go."""
        self._before = None

    def _raise_rate(self, factor: float) -> None:
        self.raised *= factor
        raise_rate(self._loop.optimizer, self._loop.scheduler, factor)

    def state_dict(self) -> dict[str, Any]:
        """All that a run goes on from; what a jump could be undone with, on one rank alone."""
        before = self._before if self._loop.fabric.world_size == 1 else None
        return {
            "before": None if before is None else before.state_dict(),
            "average": self._average,
            "raised": self.raised,
            "seconds": self.seconds,
            "guard": self.guard.state_dict(),
            "dynamics": self._dynamics.state_dict(),
            "correction": self.correction.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave."""
        here = self._trajectory.read()
        self._average = None if state["average"] is None else state["average"].to(here)
        self.raised, self.seconds = state["raised"], state["seconds"]
        self._before = None if state["before"] is None else _Before.from_state(state["before"], here)
        self.guard.load_state_dict(state["guard"])
        self._dynamics.load_state_dict(state["dynamics"])
        self.correction.load_state_dict(state["correction"])


def raise_rate(optimizer: Any, scheduler: Any, factor: float) -> None:
    """Multiply the learning rates, now and those that a scheduler goes on to compute."""
    if factor == 1.0:
        return
    for group in optimizer.param_groups:
        for name in ("lr", "initial_lr"):
            if name in group:
                group[name] = group[name] * factor
    if hasattr(scheduler, "base_lrs"):
        scheduler.base_lrs = [rate * factor for rate in scheduler.base_lrs]
