"""Dynamics models of the plugin on a trajectory that training made."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mapping_core import Callback, DynamicsConfig, MappingModel, MappingTrainer
from mapping_core.contexts import DynamicsContext
from mapping_core.reference.data import digits
from mapping_core.reference.models import DigitsCNN
from mapping_plugin_dynamics import Dmd, Kalman, Linear, Ols, Random, Subspace

LEARNING = [Linear(), Ols(), Subspace(), Dmd(), Dmd(bags=5), Kalman()]
Seen = list[tuple[Tensor, float]]


class Recorder(Callback):
    """Keeps the trained numbers and the loss after every step."""

    def __init__(self) -> None:
        self.seen: Seen = []

    def on_batch_end(self, trainer: MappingTrainer, record: Any) -> None:
        numbers = [each.detach().flatten() for each in trainer.model.parameters()]
        self.seen.append((torch.cat(numbers).clone(), float(record.loss)))


def recorded(model: nn.Module, learning_rate: float) -> Seen:
    """Train on digits for 126 steps at a constant rate."""
    recorder, (train, _) = Recorder(), digits()
    MappingTrainer(
        model,
        train,
        max_epochs=6,
        seed=0,
        learning_rate=learning_rate,
        schedule="constant",
        accelerator="cpu",
        progress=False,
        callbacks=[recorder],
    ).fit()
    return recorder.seen


@pytest.fixture(scope="module", params=["latent", "weights"])
def trajectory(request: pytest.FixtureRequest) -> Seen:
    """A latent of 500 numbers, or all 38,282 weights, at a rate far below the best one."""
    torch.manual_seed(0)
    network = DigitsCNN()
    if request.param == "weights":
        return recorded(network, 2e-4)
    return recorded(MappingModel(network, 500, "slvt", seed=0), 0.02)


def asked(config: DynamicsConfig, trajectory: Seen, steps: int) -> tuple[float, float, float]:
    """Of a displacement of 20 steps: its cosine with the real one, its share of that one's length, the loss there."""
    model = config.build(DynamicsContext(size=len(trajectory[0][0]), seed=0))
    for step in range(steps):
        model.observe(*trajectory[step], step)
    (proposal,) = model.propose([20])
    true = trajectory[steps + 19][0] - trajectory[steps - 1][0]
    assert proposal.forecast is not None
    cosine = float(torch.cosine_similarity(proposal.delta, true, dim=0))
    return cosine, float(proposal.delta.norm() / true.norm()), proposal.forecast


@pytest.mark.parametrize("config", LEARNING, ids=lambda config: f"{config.name}{getattr(config, 'bags', '') or ''}")
def test_points_where_training_goes(config: DynamicsConfig, trajectory: Seen) -> None:
    """Where the rate is too low, so that steps go on in one direction, every model points there, and knows how far."""
    for steps in (70, 100):
        cosine, length, loss = asked(config, trajectory, steps)
        assert cosine > 0.5
        assert 0.4 < length < 2.5
        real = sum(each for _, each in trajectory[steps + 15 : steps + 24]) / 9
        assert loss == pytest.approx(real, abs=0.45)


def test_the_placebo_does_not(trajectory: Seen) -> None:
    """The random direction has nothing to do with training."""
    cosine, _, _ = asked(Random(), trajectory, 70)
    assert abs(cosine) < 0.2
