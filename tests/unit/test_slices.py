"""Large layers, run a few rows at a time under lazy generation."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mapping_core import MappingModel
from mapping_core.target import slices


class Large(nn.Module):
    """A convolution and two linear layers, one of them without a bias, all large beside the slices of the tests."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 12, 3, padding=1, padding_mode="circular")
        self.hidden = nn.Linear(12, 30, bias=False)
        self.head = nn.Linear(30, 5)

    def forward(self, x: Tensor) -> Tensor:
        features = self.conv(x).mean(dim=(2, 3))
        output: Tensor = self.head(self.hidden(features).tanh())
        return output


@pytest.fixture
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slices of 64 weights, so that a small network has several."""
    monkeypatch.setattr(slices, "SLICE", 64)


@pytest.mark.usefixtures("small_slices")
@pytest.mark.parametrize("strategy", ["slvt", "layerwise"])
@pytest.mark.parametrize("roles", [{}, {"frozen": "*.bias"}, {"trained": "head.bias"}, {"frozen": "hidden"}])
def test_equals_eager(strategy: str, roles: dict[str, Any]) -> None:
    """Outputs and gradients are those of eager generation, whatever of the layers is mapped."""
    torch.manual_seed(0)
    target = Large()
    eager = MappingModel(target, 40, strategy, **roles)
    lazy = MappingModel(target, 40, strategy, lazy=True, **roles)
    vector = torch.randn(40)
    eager.load_latent_vector(vector)
    lazy.load_latent_vector(vector)
    x = torch.randn(3, 2, 5, 5)
    for model in (eager, lazy):
        model(x).square().sum().backward()
    torch.testing.assert_close(lazy(x), eager(x))
    for ours, theirs in zip(lazy.parameters(), eager.parameters(), strict=True):
        assert ours.grad is not None
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        torch.testing.assert_close(lazy.eval()(x), eager.eval()(x))


@pytest.mark.usefixtures("small_slices")
def test_unbatched_input() -> None:
    """A convolution's channels are found without a batch dimension too."""
    target = nn.Conv1d(3, 40, 2)
    model = MappingModel(target, 8, "slvt", lazy=True)
    x = torch.randn(3, 7)
    torch.testing.assert_close(model(x), target(x))


@pytest.mark.usefixtures("small_slices")
def test_what_is_run_whole() -> None:
    """Small layers, grouped convolutions, subclasses and layers with a forward of their own are not cut."""

    class Own(nn.Linear):
        pass

    patched = nn.Linear(16, 16)
    patched.forward = nn.functional.relu  # type: ignore[method-assign]
    for module in (nn.Linear(4, 4), nn.Conv1d(16, 16, 3, groups=2), Own(16, 16), patched, nn.LSTM(16, 16)):
        assert slices.slices_of(module) == []
    assert slices.slices_of(nn.Linear(16, 9)) == [(0, 4), (4, 8), (8, 9)]


@pytest.mark.usefixtures("small_slices")
def test_the_skeleton_is_left_as_it_was() -> None:
    """After a call, and after one that fails, the skeleton's layers have their own forward and no weights."""
    model = MappingModel(Large(), 40, lazy=True)
    model(torch.randn(1, 2, 5, 5))
    with pytest.raises(RuntimeError):
        model(torch.randn(1, 7, 5, 5))
    for module in model.skeleton.modules():
        assert "forward" not in vars(module)
        assert all(parameter.is_meta for parameter in module.parameters(recurse=False))
