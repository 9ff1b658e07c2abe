"""The contracts: what a component need not write, and what it must."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mapping_core import Callback, DynamicsModel, Generator, Loss, Mapper, Modulation, Phase, PhasePolicy
from mapping_core.components import KINDS
from mapping_core.interfaces import callback, dynamics, phase_policy
from mapping_core.interfaces.dynamics import Proposal
from mapping_core.interfaces.loss import LossStep
from mapping_core.interfaces.phase_policy import LEGAL_TRANSITIONS, PhaseDecision, PhaseOutcome, Progress
from mapping_core.training.events import EVENTS


class Still(DynamicsModel):
    """A model that proposes to stay."""

    def observe(self, latent: Tensor, loss: float, step: int) -> None:
        self.z = latent.clone()

    def propose(self, horizons: Sequence[int]) -> list[Proposal]:
        return [Proposal(horizon=h, delta=torch.zeros_like(self.z)) for h in horizons]


class Ever(PhasePolicy):
    """A policy without memory."""

    def next(self, progress: Progress) -> PhaseDecision:
        return PhaseDecision(Phase.FULL)


class Mean(Loss):
    """The mean of the predictions."""

    def forward(self, step: LossStep) -> Tensor:
        mean: Tensor = step.predictions.mean()
        return mean

    def items(self, step: LossStep) -> int:
        return len(step.predictions)


@pytest.mark.parametrize("contract", [DynamicsModel, Generator, Loss, Mapper, Modulation, PhasePolicy])
def test_what_must_be_written(contract: type[Any]) -> None:
    """A contract whose methods are missing cannot be made."""
    with pytest.raises(TypeError, match="abstract"):
        contract()


@pytest.mark.parametrize("stateful", [Callback(), Still(), Ever()])
def test_state_is_optional(stateful: Any) -> None:
    """A component without state saves nothing, and takes nothing back."""
    before = dict(vars(stateful))
    assert stateful.state_dict() == {}
    stateful.load_state_dict({})
    assert vars(stateful) == before


def test_feedback_is_optional() -> None:
    """A policy and a dynamics model may ignore what became of their proposals."""
    policy, model = Ever(), Still()
    policy.feedback(PhaseOutcome(phase=Phase.FULL, steps=1, loss=1.0, seconds=0.1))
    model.observe(torch.ones(3), 1.0, 0)
    model.feedback(None, measured=None)
    assert vars(policy) == {}
    (proposal,) = model.propose([4])
    assert (proposal.horizon, proposal.delta.tolist(), proposal.forecast, proposal.variance) == (
        4,
        [0.0] * 3,
        None,
        None,
    )


def test_a_loss_need_not_report() -> None:
    """Metrics beside the loss are optional."""
    step = LossStep(predictions=torch.ones(2), targets=None, latents={}, evaluate=lambda latents: None)
    assert Mean().metrics(step) == {}
    assert isinstance(Mean(), nn.Module)


@pytest.mark.parametrize("event", EVENTS)
def test_every_event_does_nothing_by_default(event: str) -> None:
    """Each event of a bare callback takes its arguments and leaves no trace."""
    bare = Callback()
    method = getattr(bare, event)
    method(*[None] * len(inspect.signature(method).parameters))
    assert not vars(bare)
    assert bare.state_key == "Callback"


def test_transitions() -> None:
    """Every phase may be continued and has a way to FULL; a jump is only made from trained ground."""
    assert set(LEGAL_TRANSITIONS) == set(Phase)
    assert all({phase, Phase.FULL} <= after for phase, after in LEGAL_TRANSITIONS.items())
    assert Phase.PREDICT not in LEGAL_TRANSITIONS[Phase.WARMUP]
    assert all(Phase.WARMUP not in after for phase, after in LEGAL_TRANSITIONS.items() if phase is not Phase.WARMUP)


@pytest.mark.parametrize("module", [callback, dynamics, phase_policy])
def test_torch_free_contracts(module: ModuleType) -> None:
    """The contracts that are plain classes name torch only for the type checker."""
    tree = ast.parse(inspect.getsource(module))
    names = [
        getattr(node, "module", None) or node.names[0].name
        for node in tree.body
        if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    assert names
    assert not [name for name in names if name.startswith("torch")]


def test_seven_kinds() -> None:
    """There are seven kinds, each with a hook of its own."""
    assert len(KINDS) == len({kind.hook for kind in KINDS.values()}) == 7
