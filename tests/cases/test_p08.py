"""P8: parameters of one element. Source: packages whose scale of a scalar divides by zero."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from mapping_core import MappingModel
from tests import targets


class Bare(nn.Module):
    """A number without dimensions, alone."""

    def __init__(self) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.tensor(2.5))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.value


def norm_of_one() -> nn.Module:
    """Norms over one channel."""
    return nn.Sequential(nn.Conv1d(1, 1, 1), nn.BatchNorm1d(1), nn.GroupNorm(1, 1), nn.PReLU())


TARGETS = {
    "scalars": (targets.Scalars, torch.randn(5, 6), 4),
    "bare": (Bare, torch.randn(5, 6), 1),
    "one_by_one": (lambda: nn.Linear(1, 1), torch.randn(5, 1), 2),
    "one_without_bias": (lambda: nn.Linear(1, 1, bias=False), torch.randn(5, 1), 1),
    "norms_of_one": (norm_of_one, torch.randn(5, 1, 4), 4),
    "embedding_of_one": (lambda: nn.Embedding(1, 1), torch.zeros(5, dtype=torch.int64), 1),
    "recurrent_of_one": (lambda: nn.GRU(1, 1), torch.randn(5, 2, 1), 3),
}


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("strategy", ["slvt", "layerwise"])
@pytest.mark.parametrize("base", ["current", "zero"])
def test_start_and_training(name: str, strategy: str, base: str, tmp_path: Path) -> None:
    """Values are unchanged before training, finite ever after, and move; shapes without dimensions stay so."""
    make, inputs, latent_dim = TARGETS[name]
    target = make()
    model = MappingModel(target, latent_dim, strategy, base=base)
    if base == "current":
        for key, weight in model.generate_weights().items():
            assert torch.equal(weight, target.get_parameter(key))
            assert weight.shape == target.get_parameter(key).shape
    targets.moved(model)
    targets.first_tensor(model(inputs)).square().sum().backward()  # type: ignore[no-untyped-call]
    assert model.latent.grad is not None
    assert model.latent.grad.isfinite().all()
    assert all(weight.isfinite().all() for weight in model.generate_weights().values())
    targets.assert_equals_direct(model, inputs)
    model.save(tmp_path / "m")
    if base == "current":
        loaded = MappingModel.load(tmp_path / "m", target)
        assert all(
            torch.equal(weight, loaded.generate_weights()[key]) for key, weight in model.generate_weights().items()
        )


def test_each_scalar_moves_by_the_scale_of_its_kind() -> None:
    """A logit scale or a slope has a step of its own size, neither 0 nor enormous."""
    model = targets.moved(MappingModel(targets.Scalars(), 16))
    base = targets.Scalars()
    for name in ("logit_scale", "slope.weight"):
        moved = (model.generate_weights()[name].detach() - base.get_parameter(name).detach()).abs()
        assert 0 < float(moved) < 1
