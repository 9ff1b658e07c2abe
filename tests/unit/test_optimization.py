"""The default optimiser, learning rate and schedule."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from mapping_core import MappingModel, TargetError
from mapping_core.training.optimization import default_learning_rate, default_optimizer, default_schedule
from tests import targets


def rates(steps: int, *, kind: str = "cosine", warmup: float = 0.0, total_steps: int | None = None) -> list[float]:
    """Return the rate of each step, as a share of the full rate."""
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    schedule = default_schedule(optimizer, kind=kind, warmup=warmup, total_steps=total_steps)
    made = []
    for _ in range(steps):
        made.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return made


def test_learning_rate_falls_with_the_latent() -> None:
    """0.2 at 2,048 numbers, and by the cube root of the size; 1e-3 without a latent."""
    target = nn.Linear(128, 128)
    rate = {d: default_learning_rate(MappingModel(target, d, "slvt")) for d in (256, 2048, 16384)}
    assert rate[2048] == pytest.approx(0.2)
    assert rate[256] == pytest.approx(0.4)
    assert rate[16384] == pytest.approx(0.1)
    assert default_learning_rate(target) == 1e-3


def test_optimizer_holds_what_trains() -> None:
    """AdamW over exactly the trainable parameters, with the given rate and decay."""
    model = MappingModel(targets.mlp(), 16)
    optimizer = default_optimizer(model, learning_rate=0.5, weight_decay=0.25)
    (group,) = optimizer.param_groups
    assert isinstance(optimizer, torch.optim.AdamW)
    assert [id(p) for p in group["params"]] == [id(model.latent)]
    assert (group["lr"], group["weight_decay"]) == (0.5, 0.25)
    direct = default_optimizer(targets.partly_frozen())
    assert sum(p.numel() for p in direct.param_groups[0]["params"]) == 27


def test_tiny_gradients_still_move_a_latent() -> None:
    """A latent whose gradient is 1e-9 moves by nearly the learning rate, as Adam promises for large ones."""
    model = MappingModel(targets.mlp(), 16)
    optimizer = default_optimizer(model, learning_rate=0.1)
    model.latent.grad = torch.full((16,), 1e-9)
    optimizer.step()
    assert model.latent.detach().max() < -0.09


def test_nothing_to_train() -> None:
    """A module without trainable parameters is refused by name."""
    with pytest.raises(TargetError, match="Sequential has no trainable parameter"):
        default_optimizer(targets.mlp().requires_grad_(False))


def test_cosine_with_warmup() -> None:
    """The rate rises in equal steps over the warm-up share, is full once, and ends near 0, never above 1."""
    made = rates(100, warmup=0.1, total_steps=100)
    rise = torch.tensor(made[:11]).diff()
    torch.testing.assert_close(rise, rise[:1].expand(10), atol=1e-6, rtol=0)
    assert max(made) == made[10] == 1.0
    assert made[10:] == sorted(made[10:], reverse=True)
    assert made[55] == pytest.approx(0.5, abs=0.01)
    assert 0 < made[-1] < 0.001


def test_constant_with_warmup() -> None:
    """A constant schedule stays at the full rate after the warm-up."""
    made = rates(20, kind="constant", warmup=0.25, total_steps=20)
    assert made[0] == pytest.approx(1 / 6)
    assert made[5:] == [1.0] * 15


@pytest.mark.parametrize("kind", ["cosine", "constant"])
def test_unknown_length(kind: str) -> None:
    """Without a known number of steps the rate is constant from the first."""
    assert rates(5, kind=kind, warmup=0.5) == [1.0] * 5


@pytest.mark.parametrize("total", [1, 2, 3])
def test_short_runs_train(total: int) -> None:
    """Runs of a few steps have a positive rate at each, and the schedule survives its end."""
    made = rates(total + 2, warmup=0.05, total_steps=total)
    assert min(made[:total]) > 0
