"""D3: activation checkpointing inside the target. Source: pytorch issue 144035 (CheckpointError)."""

from __future__ import annotations

from typing import cast

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from mapping_core import MappingModel, TargetError
from tests import targets

X = torch.randn(5, 6, generator=torch.Generator().manual_seed(1))

pytestmark = pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")


class Checkpointing(nn.Module):
    """Checkpoints a block in one of several ways; [N, 6] -> [N, 3]."""

    def __init__(self, way: str, *, reentrant: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem = nn.Linear(6, 6)
        self.block = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh())
        self.head = nn.Linear(6, 3)
        self.way = way
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        if self.way.startswith("late"):  # so that the block's input asks for a gradient
            x = self.stem(x)
        way = self.way.removeprefix("late_")
        hidden: Tensor
        if way == "sequential":
            hidden = checkpoint_sequential(self.block, 2, x, use_reentrant=self.reentrant)  # type: ignore[no-untyped-call]
        else:
            function = {"module": self.block, "method": self._run, "function": self._weights}[way]
            hidden = checkpoint(function, x, use_reentrant=self.reentrant)
        logits: Tensor = self.head(hidden)
        return logits

    def _run(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.block(x)
        return hidden

    def _weights(self, x: Tensor) -> Tensor:
        """Use a weight without calling its module."""
        return functional.linear(x, cast("Tensor", self.block[0].weight)).tanh()


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("late", ["", "late_"])
@pytest.mark.parametrize("way", ["module", "method", "function", "sequential"])
def test_refused_before_training(way: str, late: str, reentrant: bool) -> None:
    """A checkpointed block, whose recomputation would see other weights, is refused at the first pass, every time."""
    model = targets.moved(MappingModel(Checkpointing(late + way, reentrant=reentrant), 24))
    before = model.latent_vector()
    for _ in range(2):
        with pytest.raises(
            TargetError, match=r"the target checkpoints (its block|a function that uses) 'block"
        ) as error:
            model(X)
    assert "checkpoint the whole mapped model" in str(error.value)
    assert torch.equal(model.latent_vector(), before)
    assert model.latent.grad is None


@pytest.mark.parametrize("way", ["module", "late_module"])
@pytest.mark.parametrize("reentrant", [True, False])
def test_refused_when_lazy(way: str, reentrant: bool) -> None:
    """Lazy generation, which itself recomputes, refuses it too."""
    model = targets.moved(MappingModel(Checkpointing(way, reentrant=reentrant), 24, lazy=True))
    with pytest.raises(TargetError, match="the target checkpoints its block"):
        model(X)


def test_a_trainer_says_so_before_the_first_step() -> None:
    """`fit` ends with that error, and the latent is where it was."""
    model = MappingModel(Checkpointing("module", reentrant=False), 24)
    with pytest.raises(TargetError, match="the target checkpoints its block"):
        targets.trainer_of(model).fit()
    assert not model.latent.any()


@pytest.mark.parametrize("way", ["module", "function", "sequential"])
@pytest.mark.parametrize("reentrant", [True, False])
def test_inference_needs_no_recomputation(way: str, reentrant: bool) -> None:
    """Without a gradient nothing is computed twice, so such a target infers as ever; and is still refused to train."""
    target = Checkpointing(way, reentrant=reentrant)
    model = MappingModel(target, 24)
    with torch.no_grad():
        assert torch.equal(model(X), target(X))
    with pytest.raises(TargetError, match="the target checkpoints"):
        model(X)


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("lazy", [False, True])
def test_around_the_whole_model(reentrant: bool, lazy: bool) -> None:
    """Checkpointing the mapped model as a whole gives the gradient it has without."""
    model = targets.moved(MappingModel(targets.mlp(), 24, lazy=lazy))
    model(X).square().sum().backward()
    plain = model.latent.grad
    model.zero_grad()
    x = X.clone().requires_grad_()
    checkpoint(model, x, use_reentrant=reentrant).square().sum().backward()
    assert plain is not None
    torch.testing.assert_close(model.latent.grad, plain)


def test_around_a_part_of_a_larger_model() -> None:
    """A mapped model that is one block of a plain network may be the block that is checkpointed."""
    model = targets.moved(MappingModel(targets.mlp(), 24))
    front, back = nn.Linear(6, 6), nn.Linear(3, 2)

    def gradient(checkpointed: bool) -> Tensor:
        model.zero_grad()
        hidden = front(X)
        hidden = checkpoint(model, hidden, use_reentrant=False) if checkpointed else model(hidden)
        back(hidden).square().sum().backward()
        assert model.latent.grad is not None
        return model.latent.grad

    torch.testing.assert_close(gradient(True), gradient(False))
