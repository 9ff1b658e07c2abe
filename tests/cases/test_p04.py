"""P4: learned loss coefficients. Source: packages whose coefficients sink to 0, and are lost with the checkpoint."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from mapping_core import LossConfig, MappingModel, Registry
from mapping_core.contexts import LossContext
from mapping_core.interfaces.loss import Loss
from mapping_core.training.batches import Batch
from mapping_core.training.steps import forward_step
from tests import targets

LEARNED = {"type": "mapping", "learned": True}


def built(model: MappingModel) -> Loss:
    """Return the mapping loss with all its terms and learned coefficients."""
    return Registry.discover().resolve(LossConfig, LEARNED).build(LossContext(model=model))


def trained(steps: int) -> tuple[MappingModel, Loss]:
    """Train a model and its coefficients in a plain loop."""
    torch.manual_seed(0)
    model = MappingModel(nn.Sequential(targets.mlp(), nn.Dropout(0.1)), 24)
    loss = built(model)
    x, labels = targets.rows(24)
    optimizer = torch.optim.AdamW([*model.parameters(), *loss.parameters()], lr=0.05, weight_decay=0.0)
    for _ in range(steps):
        optimizer.zero_grad()
        loss(forward_step(model, model, Batch((x,), {}, labels))).backward()
        optimizer.step()
    return model, loss


def coefficients(loss: Loss) -> torch.Tensor:
    """What multiplies the task and each term now, beside their weights."""
    (scales,) = loss.parameters()
    return (-scales.detach()).exp()


def test_they_do_not_collapse() -> None:
    """After 400 steps every coefficient has moved towards what balances its term; none is 0 or has run away."""
    _, loss = trained(400)
    found = coefficients(loss)
    assert len(found) == 4
    assert bool(((found - 1).abs() > 0.01).all())
    assert bool(((found > 0.01) & (found < 2000)).all())


def test_values_are_restored(tmp_path: Path) -> None:
    """Saved and loaded without executing a pickle, the coefficients are what they were."""
    model, loss = trained(20)
    torch.save(loss.state_dict(), tmp_path / "loss.pt")
    again = built(model)
    assert not torch.equal(coefficients(again), coefficients(loss))
    again.load_state_dict(torch.load(tmp_path / "loss.pt", weights_only=True))
    assert torch.equal(coefficients(again), coefficients(loss))
