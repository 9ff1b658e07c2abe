"""Policies and dynamics models that the tests of predictive training are made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from attrs import define
from torch import Tensor

import mapping_core.builtin
from mapping_core import DynamicsConfig, DynamicsModel, PhaseDecision, PhaseOutcome, PhasePolicy, PhasePolicyConfig
from mapping_core.contexts import DynamicsContext, PhasePolicyContext
from mapping_core.interfaces.dynamics import Proposal
from mapping_core.interfaces.phase_policy import Phase, Progress, Verdict

#: Guards that judge anything at once, whatever it costs.
FREE: dict[str, Any] = {"samples": 8, "share": 0.99, "wait": 0}


class Cycling(PhasePolicy):
    """FULL for `full` steps, a jump, and CORRECT for `correct` steps where it was kept, over and over."""

    def __init__(self, config: Cycle) -> None:
        self.config = config
        self.kept = False
        self.told: list[PhaseOutcome] = []

    def next(self, progress: Progress) -> PhaseDecision:
        if progress.phase is Phase.FULL:
            return PhaseDecision(Phase.PREDICT, horizons=self.config.horizons)
        if progress.phase is Phase.PREDICT and self.kept:
            return PhaseDecision(Phase.CORRECT, self.config.correct)
        return PhaseDecision(Phase.FULL, self.config.full)

    def feedback(self, outcome: PhaseOutcome) -> None:
        self.told.append(outcome)
        if outcome.jump is not None:
            self.kept = outcome.jump.verdict is Verdict.ACCEPTED

    def state_dict(self) -> dict[str, Any]:
        return {"kept": self.kept}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.kept = state["kept"]


@define(frozen=True, kw_only=True)
class Cycle(PhasePolicyConfig):
    """A policy of jumps."""

    name = "cycle"
    full: int = 4
    correct: int = 3
    horizons: tuple[int, ...] = (2, 5)

    def build(self, context: PhasePolicyContext) -> Cycling:
        return Cycling(self)


class Extrapolation(DynamicsModel):
    """Goes on by the last step, `factor` times a horizon's steps; keeps what it was told."""

    def __init__(self, context: DynamicsContext, factor: float) -> None:
        self.size, self.factor = context.size, factor
        self.seen: list[Tensor] = []
        self.steps: list[int] = []
        self.told: list[tuple[Proposal | None, float | None]] = []

    def observe(self, latent: Tensor, loss: float, step: int) -> None:
        self.seen = [*self.seen[-1:], latent.clone()]
        self.steps.append(step)

    def propose(self, horizons: Sequence[int]) -> list[Proposal]:
        if len(self.seen) < 2:
            return []
        step = (self.seen[1] - self.seen[0]) * self.factor
        return [Proposal(horizon=each, delta=step * each, forecast=0.5) for each in horizons]

    def feedback(self, accepted: Proposal | None, measured: float | None) -> None:
        self.told.append((accepted, measured))
        if accepted is not None:
            self.seen = [each + accepted.delta for each in self.seen]

    def state_dict(self) -> dict[str, Any]:
        return {"seen": list(self.seen)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seen = list(state["seen"])


@define(frozen=True, kw_only=True)
class Extrapolate(DynamicsConfig):
    """A dynamics model: forward with a positive `factor`, back with a negative one, nowhere finite with NaN."""

    name = "extrapolate"
    factor: float = 1.0

    def build(self, context: DynamicsContext) -> Extrapolation:
        return Extrapolation(context, self.factor)


class Plugin:
    """Registers both."""

    @staticmethod
    @mapping_core.hookimpl
    def mapping_phase_policies() -> list[type[PhasePolicyConfig]]:
        """Return the policy."""
        return [Cycle]

    @staticmethod
    @mapping_core.hookimpl
    def mapping_dynamics_models() -> list[type[DynamicsConfig]]:
        """Return the model."""
        return [Extrapolate]


def weights(model: torch.nn.Module) -> Tensor:
    """All that trains, as one vector."""
    return torch.cat([each.detach().reshape(-1) for each in model.parameters() if each.requires_grad])
