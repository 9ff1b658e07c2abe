"""The policies: their cycles, the gate of sampling, and whole runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from attrs import define, field
from torch import Tensor, nn

import mapping_core.builtin
import mapping_plugin_phases
from mapping_core import (
    DynamicsConfig,
    DynamicsModel,
    MappingTrainer,
    Phase,
    PhaseDecision,
    PhaseOutcome,
    PhasePolicy,
    Registry,
    hookimpl,
)
from mapping_core.contexts import DynamicsContext, PhasePolicyContext
from mapping_core.interfaces.dynamics import Proposal
from mapping_core.interfaces.phase_policy import JumpOutcome, Progress, Verdict
from mapping_plugin_phases import Fixed, Sampled
from mapping_plugin_phases._sampled import SampledPolicy

CONTEXT = PhasePolicyContext(total_steps=None, seed=0)


def driven(policy: PhasePolicy, answer: Callable[[PhaseDecision], PhaseOutcome], phases: int) -> list[PhaseDecision]:
    """Ask a policy for so many phases, and tell it what each did."""
    decisions: list[PhaseDecision] = []
    for _ in range(phases):
        before = decisions[-1].phase if decisions else None
        decisions.append(policy.next(Progress(step=0, total_steps=None, phase=before, loss=1.0)))
        assert not decisions[-1].fault()
        policy.feedback(answer(decisions[-1]))
    return decisions


def jumped(verdict: Verdict) -> Callable[[PhaseDecision], PhaseOutcome]:
    """Outcomes where every jump has this verdict."""
    jump = JumpOutcome(verdict=verdict)
    return lambda decision: PhaseOutcome(
        phase=decision.phase, steps=1, loss=1.0, seconds=1.0, jump=jump if decision.is_jump else None
    )


def timed(plain: float, sampled: float, gain: float) -> Callable[[PhaseDecision], PhaseOutcome]:
    """Outcomes where ordinary and sampled steps take so long."""
    return lambda decision: PhaseOutcome(
        phase=decision.phase,
        steps=decision.steps or 0,
        loss=1.0,
        seconds=1.0,
        step_seconds=plain if decision.keep is None else sampled,
        gain=None if decision.keep is None else gain,
    )


def names(decisions: Sequence[PhaseDecision]) -> str:
    """The phases' first letters."""
    return "".join(each.phase.name[0] for each in decisions)


def test_fixed_cycles() -> None:
    """CORRECT follows a jump that was kept, FULL one that was not; lengths are those of the options."""
    config = Fixed(warmup=7, full=5, correct=3, horizons=[2, 4])
    assert names(driven(config.build(CONTEXT), jumped(Verdict.ACCEPTED), 8)) == "WFPCFPCF"
    decisions = driven(config.build(CONTEXT), jumped(Verdict.REJECTED), 6)
    assert names(decisions) == "WFPFPF"
    assert [each.steps for each in decisions] == [7, 5, None, 5, None, 5]
    assert decisions[2].horizons == (2, 4)


def test_sampled_goes_on_where_it_pays() -> None:
    """What was measured to pay goes on for `recheck` steps, is timed again, and is given up where it pays no more."""
    policy = Sampled(warmup=1, measure=3, recheck=50).build(CONTEXT)
    pays, fails = timed(1.0, 0.6, gain=1.6), timed(1.0, 0.8, gain=1.6)
    decisions = driven(policy, pays, 5) + driven(policy, fails, 0)
    assert names(decisions) == "WFPPF"
    assert [each.steps for each in decisions] == [1, 3, 3, 50, 3]
    progress = Progress(step=0, total_steps=None, phase=Phase.FULL, loss=1.0)
    trial = policy.next(progress)
    policy.feedback(fails(trial))
    assert policy.next(progress) == PhaseDecision(Phase.FULL, 50)


@pytest.mark.parametrize(
    ("plain", "sampled", "gain", "pays"),
    [(1.0, 0.69, 1.6, True), (1.0, 0.7, 1.6, False), (1.0, 0.5, 1.0, False), (0.0, 0.0, 2.0, False)],
)
def test_the_gate(plain: float, sampled: float, gain: float, pays: bool) -> None:
    """It opens where the share of a batch that chosen samples are worth is 1.15 times their share of its time."""
    policy = Sampled(keep=0.5).build(CONTEXT)
    assert isinstance(policy, SampledPolicy)
    assert not policy.pays
    driven(policy, timed(plain, sampled, gain), 3)
    assert policy.pays is pays


@pytest.mark.parametrize("config", [Fixed(), Sampled()])
@pytest.mark.parametrize("after", range(6))
def test_state(config: Any, after: int) -> None:
    """A policy that takes over a state answers as the other does."""
    answer = jumped(Verdict.ACCEPTED) if isinstance(config, Fixed) else timed(1.0, 0.6, 1.6)
    policy, twin = config.build(CONTEXT), config.build(CONTEXT)
    last = driven(policy, answer, after)
    twin.load_state_dict(policy.state_dict())
    progress = Progress(step=1, total_steps=None, phase=last[-1].phase if last else None, loss=1.0)
    assert policy.next(progress) == twin.next(progress)
    assert policy.state_dict() == twin.state_dict()


@define(frozen=True, kw_only=True)
class Back(DynamicsConfig):
    """Proposes to go back to where a run began, times `factor`."""

    name = "back"
    factor: float = field(default=1.0)

    def build(self, context: DynamicsContext) -> DynamicsModel:
        return BackModel(self.factor)


class BackModel(DynamicsModel):
    """Away from the minimum for a positive factor, on towards it for a negative one."""

    def __init__(self, factor: float) -> None:
        self.factor = factor
        self.ends: list[Tensor] = []

    def observe(self, latent: Tensor, loss: float, step: int) -> None:
        self.ends = [*self.ends[:1], latent.clone()]

    def propose(self, horizons: Sequence[int]) -> list[Proposal]:
        if len(self.ends) < 2:
            return []
        return [Proposal(horizon=each, delta=self.factor * (self.ends[0] - self.ends[1])) for each in horizons]


class Plugin:
    """Registers it."""

    @hookimpl
    def mapping_dynamics_models(self) -> list[type[DynamicsConfig]]:
        return [Back]


def run(prediction: Any, epochs: int = 6) -> MappingTrainer:
    """Train a line on noisy points, full steps of plain SGD."""
    torch.manual_seed(0)
    x = torch.randn(256, 4)
    y = x @ torch.tensor([[1.0], [-2.0], [0.5], [3.0]]) + 0.1 * torch.randn(256, 1)
    model = nn.Linear(4, 1)
    trainer = MappingTrainer(
        model,
        list(zip(torch.split(x, 32), torch.split(y, 32), strict=True)),
        max_epochs=epochs,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.01),
        prediction=prediction,
        registry=Registry.of(mapping_core.builtin, mapping_plugin_phases, Plugin()),
        seed=0,
        accelerator="cpu",
        progress=False,
    )
    trainer.fit()
    return trainer


def weights(trainer: MappingTrainer) -> Tensor:
    """All that trains."""
    return torch.cat([each.detach().reshape(-1) for each in trainer.model.parameters()])


GUARD = {"samples": 64, "share": 0.9, "wait": 0}
POLICY = {"type": "fixed", "warmup": 8, "full": 8, "correct": 4, "horizons": [4]}


def test_jumps_that_help_are_kept() -> None:
    """With a rate that is far too low, jumps on towards the minimum leave a lower loss than the plain run's."""
    plain = run(None)
    trainer = run({"policy": POLICY, "dynamics": {"type": "back", "factor": -1.0}, "guard": GUARD})
    phases = [record.phase for record in trainer.history.phases]
    assert Phase.CORRECT in phases
    assert trainer.history["train_loss"][-1] < 0.5 * plain.history["train_loss"][-1]


def test_jumps_that_harm_are_rejected_without_a_trace() -> None:
    """With every jump rejected the run has the plain run's weights, bit for bit."""
    trainer = run({"policy": POLICY, "dynamics": {"type": "back", "factor": 1.0}, "guard": GUARD})
    phases = [record.phase for record in trainer.history.phases]
    assert Phase.PREDICT in phases
    assert Phase.CORRECT not in phases
    assert torch.equal(weights(trainer), weights(run(None)))


def test_a_sampled_run() -> None:
    """A sampled run measures, decides, and learns."""
    policy = {"type": "sampled", "warmup": 4, "measure": 4, "recheck": 8, "margin": 1e-6}
    trainer = run({"policy": policy})
    assert [record.phase for record in trainer.history.phases][:3] == [Phase.WARMUP, Phase.FULL, Phase.PREDICT]
    losses = trainer.history["train_loss"]
    assert losses[-1] < losses[0]
    assert all(math.isfinite(loss) for loss in losses)


LEARNING = [
    {"type": "adaptive", "warmup": 8, "full": [4, 16], "correct": 4, "reach": [2, 8]},
    {"type": "bandit", "warmup": 8, "full": 4, "correct": 4, "horizons": [2, 4], "window": 16},
]


@pytest.mark.parametrize("policy", LEARNING, ids=lambda each: str(each["type"]))
def test_policies_that_learn_in_whole_runs(policy: dict[str, Any]) -> None:
    """Jumps that help are kept and lower the loss; with every jump rejected the run is the plain one, bit for bit."""
    plain = run(None)
    helped = run({"policy": policy, "dynamics": {"type": "back", "factor": -1.0}, "guard": GUARD})
    assert Phase.CORRECT in [record.phase for record in helped.history.phases]
    assert helped.history["train_loss"][-1] < 0.5 * plain.history["train_loss"][-1]
    harmed = run({"policy": policy, "dynamics": {"type": "back", "factor": 1.0}, "guard": GUARD})
    assert Phase.PREDICT in [record.phase for record in harmed.history.phases]
    assert torch.equal(weights(harmed), weights(plain))
