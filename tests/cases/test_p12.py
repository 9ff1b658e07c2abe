"""P12: other dtypes. Source: packages that generate float32 for bfloat16 and float64 networks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from mapping_core import MappingModel
from tests import targets


class Mixed(nn.Module):
    """Layers in bfloat16, float32 and float64, with a norm between; [N, 6] -> [N, 3]."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.low = nn.Linear(6, 8).bfloat16()
        self.norm = nn.BatchNorm1d(8)
        self.high = nn.Linear(8, 3).double()

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.high(self.norm(self.low(x.bfloat16()).float()).double())
        return logits


TARGETS: dict[str, tuple[Callable[[], nn.Module], torch.dtype, torch.dtype]] = {
    "bfloat16": (lambda: targets.mlp().bfloat16(), torch.bfloat16, torch.bfloat16),
    "float16": (lambda: targets.mlp().half(), torch.float16, torch.float16),
    "float64": (lambda: targets.mlp().double(), torch.float64, torch.float64),
    "mixed": (Mixed, torch.float32, torch.float64),
}


@pytest.fixture(params=list(TARGETS.values()), ids=list(TARGETS))
def case(request: pytest.FixtureRequest) -> tuple[Callable[[], nn.Module], Tensor, torch.dtype]:
    """Give each target, its inputs, and the dtype of its output."""
    make, taken, given = request.param
    return make, torch.randn(5, 6, generator=torch.Generator().manual_seed(1)).to(taken), given


@pytest.mark.parametrize("strategy", ["slvt", "layerwise"])
@pytest.mark.parametrize("lazy", [False, True])
def test_throughout(
    case: tuple[Callable[[], nn.Module], Tensor, torch.dtype], strategy: str, lazy: bool, tmp_path: Path
) -> None:
    """Weights, outputs, export and file have the target's dtypes; the latent and its gradient are float32."""
    make, x, given = case
    target = make()
    model = MappingModel(target, 20, strategy, lazy=lazy)
    assert torch.equal(model.eval()(x), target.eval()(x))
    targets.moved(model)
    output = model.train()(x)
    assert output.dtype == given
    output.float().square().sum().backward()
    assert model.latent.dtype == torch.float32
    assert model.latent.grad is not None
    assert model.latent.grad.dtype == torch.float32
    assert model.latent.grad.isfinite().all()
    assert model.latent.grad.any()
    for name, parameter in model.eval().export().named_parameters():
        assert parameter.dtype == target.get_parameter(name).dtype
        assert not torch.equal(parameter, target.get_parameter(name))
    assert torch.equal(model.export()(x), model(x))
    model.save(tmp_path / "m")
    assert torch.equal(MappingModel.load(tmp_path / "m", make()).eval()(x), model(x))


def test_training(case: tuple[Callable[[], nn.Module], Tensor, torch.dtype]) -> None:
    """Each of them trains, and keeps its dtypes."""
    make, x, _ = case
    model = MappingModel(make(), 20)
    history = targets.trainer_of(model, [(x, torch.arange(5) % 3)], max_epochs=8, learning_rate=0.1).fit()
    assert history["train_loss"][-1] < history["train_loss"][0]
    assert model.latent.dtype == torch.float32


def test_float64_loses_nothing() -> None:
    """A float64 target starts as itself to the last bit, not as its float32 rounding."""
    target = targets.mlp().double()
    with torch.no_grad():
        target.get_parameter("0.weight").add_(1e-12)
    weights = MappingModel(target, 20).generate_weights()
    assert all(torch.equal(weights[name], parameter) for name, parameter in target.named_parameters())


def test_a_small_step_is_not_lost_in_bfloat16() -> None:
    """Steps too small for bfloat16 add up in the float32 latent, and show in the weights in the end."""
    model = MappingModel(targets.mlp().bfloat16(), 20)
    start = model.generate_weights()["0.weight"]
    with torch.no_grad():
        model.latent.add_(1e-5)
        assert torch.equal(model.generate_weights()["0.weight"], start)
        for _ in range(20_000):
            model.latent.add_(1e-5)
    assert not torch.equal(model.generate_weights()["0.weight"], start)


def test_a_head_that_trains_in_its_own_dtype(tmp_path: Path) -> None:
    """Directly trained float64 parameters keep their digits in the latent vector and in the file."""
    model = targets.moved(MappingModel(Mixed(), 47, trained="high"))
    vector = model.latent_vector()
    assert vector.dtype == torch.float64
    other = MappingModel(Mixed(), 47, trained="high")
    other.load_latent_vector(vector)
    x = torch.randn(5, 6)
    assert torch.equal(other.eval()(x), model.eval()(x))
    model.save(tmp_path / "m")
    assert torch.equal(MappingModel.load(tmp_path / "m", Mixed()).eval()(x), model(x))
