"""P13: copies. Source: mapped models that `deepcopy` and `pickle` refuse after a backward pass."""

from __future__ import annotations

import copy
import io
import pickle
import threading
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from mapping_core import MappingModel
from tests import targets


class Remembers(nn.Module):
    """Keeps tensors of its last pass, with their graph, in an attribute, a list and a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 3)
        self.last: Tensor | None = None
        self.trace: list[Tensor] = []
        self.named: dict[str, Tensor] = {}

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        self.last = hidden
        self.trace = [hidden, hidden * 2]
        self.named["hidden"] = hidden
        logits: Tensor = self.second(hidden.tanh())
        return logits


MAKES = [targets.mlp, Remembers, targets.Residual]
X = torch.randn(5, 6, generator=torch.Generator().manual_seed(1))


def pickled(model: MappingModel) -> MappingModel:
    """Return the model through pickle."""
    made: MappingModel = pickle.loads(pickle.dumps(model))  # noqa: S301 - our own bytes
    return made


def saved(model: MappingModel) -> MappingModel:
    """Return the model through `torch.save`."""
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    made: MappingModel = torch.load(buffer, weights_only=False)
    return made


@pytest.mark.parametrize("make", MAKES)
@pytest.mark.parametrize("duplicate", [copy.deepcopy, pickled, saved])
@pytest.mark.parametrize("lazy", [False, True])
def test_after_a_backward(
    make: Callable[[], nn.Module], duplicate: Callable[[MappingModel], MappingModel], lazy: bool
) -> None:
    """A copy after a backward pass computes the same bits and gradients, and is its own."""
    model = targets.moved(MappingModel(make(), 20, lazy=lazy, trained="2.bias" if make is targets.mlp else ()))
    model(X).sum().backward()
    twin = duplicate(model)
    assert torch.equal(twin(X), model(X))
    for each in (model, twin):
        each.zero_grad()
        each(X).sum().backward()
    assert model.latent.grad is not None
    assert twin.latent.grad is not None
    assert torch.equal(twin.latent.grad, model.latent.grad)
    expected = model(X)
    targets.moved(twin, seed=1)
    assert torch.equal(model(X), expected)
    assert not torch.equal(twin(X), expected)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, pickled, saved])
def test_between_forward_and_backward(duplicate: Callable[[MappingModel], MappingModel]) -> None:
    """A copy taken in the middle of a step leaves that step's gradient as it was."""
    model, plain = (targets.moved(MappingModel(Remembers(), 20)) for _ in range(2))
    loss = model(X).sum()
    duplicate(model)
    loss.backward()
    plain(X).sum().backward()
    assert model.latent.grad is not None
    assert plain.latent.grad is not None
    assert torch.equal(model.latent.grad, plain.latent.grad)


def test_no_copy_carries_generated_weights() -> None:
    """Weights kept for inference are in no pickle, and a copy does not answer with the weights of its original."""
    model = targets.moved(MappingModel(nn.Linear(200, 200), 20)).eval()
    size = len(pickle.dumps(model))
    x = torch.randn(1, 200)
    with torch.no_grad():
        model(x)
        assert len(pickle.dumps(model)) <= size + 100
        twin = copy.deepcopy(model)
        targets.moved(twin, seed=1)
        assert not torch.equal(twin(x), model(x))


@pytest.mark.parametrize("duplicate", [copy.deepcopy, pickled])
def test_a_copy_has_its_own_lock(duplicate: Callable[[MappingModel], MappingModel]) -> None:
    """A copy runs while its original is busy in another thread."""
    started, go_on = threading.Event(), threading.Event()

    def wait(*_: object) -> None:
        started.set()
        assert go_on.wait(10)

    model = MappingModel(targets.mlp(), 16)
    twin = duplicate(model)
    model.skeleton.get_submodule("0").register_forward_pre_hook(wait)
    thread = threading.Thread(target=lambda: model(X[:1, :]))
    thread.start()
    assert started.wait(10)
    assert twin(X).shape == (5, 3)
    go_on.set()
    thread.join(10)
    assert not thread.is_alive()


def test_a_copy_of_a_copy_after_conversion() -> None:
    """Copies can be converted, copied and trained again, without an effect on the others."""
    model = targets.moved(MappingModel(targets.conv_norm(), 16))
    x = torch.randn(5, 1, 6, 6)
    model(x).sum().backward()
    twin = pickled(copy.deepcopy(model).double())
    twin(x.double()).sum().backward()
    assert twin.latent.dtype == torch.float64
    assert model.latent.dtype == torch.float32
    assert int(model.export().get_buffer("1.num_batches_tracked")) == 1
    assert int(twin.export().get_buffer("1.num_batches_tracked")) == 2
