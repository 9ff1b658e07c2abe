"""D2: a mapped LSTM. Source: pytorch issue 90500 (LSTM under functional_call)."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mapping_core import MappingModel
from tests import targets

KINDS: dict[str, Callable[[], nn.Module]] = {
    "lstm": lambda: nn.LSTM(4, 3, batch_first=True),
    "lstm_bidirectional": lambda: nn.LSTM(4, 3, batch_first=True, bidirectional=True),
    "lstm_deep": lambda: nn.LSTM(4, 3, num_layers=2, batch_first=True, bias=False),
    "lstm_projected": lambda: nn.LSTM(4, 3, proj_size=2, batch_first=True),
    "gru": lambda: nn.GRU(4, 3, batch_first=True),
    "gru_bidirectional": lambda: nn.GRU(4, 3, num_layers=2, batch_first=True, bidirectional=True),
    "rnn": lambda: nn.RNN(4, 3, batch_first=True),
}


class WithHead(nn.Module):
    """A recurrent layer, and a linear one on the mean of its outputs; [N, T, 4] -> [N, 2]."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer
        self.head = nn.LazyLinear(2)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.layer(x)[0].mean(dim=1))
        return logits


X = torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(1))


def target(kind: str) -> nn.Module:
    """Return a target of one kind, initialised."""
    torch.manual_seed(0)
    module = WithHead(KINDS[kind]())
    module(X)
    return module


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lazy", [False, True])
def test_equals_the_direct_module(kind: str, lazy: bool) -> None:
    """Outputs and gradients are those of a recurrent module that holds the generated weights, call after call."""
    model = targets.moved(MappingModel(target(kind), 24, lazy=lazy))
    for seed in range(3):
        targets.assert_equals_direct(targets.moved(model, seed=seed), X)
    model.eval()
    assert torch.equal(model(X), model.export()(X))


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize("kind", KINDS)
def test_every_weight_gets_a_gradient(kind: str) -> None:
    """No generated tensor is bypassed: each has a gradient that is not 0."""
    model = targets.moved(MappingModel(target(kind), 24))
    weights = model.generate_weights()
    for weight in weights.values():
        weight.retain_grad()
    model.call(weights, X).square().sum().backward()
    assert [name for name, weight in weights.items() if weight.grad is None or not weight.grad.any()] == []


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lazy", [False, True])
def test_generated_weights_are_freed(kind: str, lazy: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the backward pass no generated weight is alive, in the layer's own list of weights or elsewhere."""
    model = targets.moved(MappingModel(target(kind), 24, lazy=lazy))
    alive: list[weakref.ref[Tensor]] = []

    def noting(function: Callable[..., dict[str, Tensor]]) -> Callable[..., dict[str, Tensor]]:
        def call(*args: Any) -> dict[str, Tensor]:
            made: Mapping[str, Tensor] = function(*args)
            alive.extend(weakref.ref(weight) for weight in made.values())
            return dict(made)

        return call

    for name in ("forward", "generate_some"):
        monkeypatch.setattr(model.generator, name, noting(getattr(model.generator, name)))
    model(X).sum().backward()
    gc.collect()
    assert alive
    assert [reference for reference in alive if reference() is not None] == []


def test_weights_are_freed_after_an_error() -> None:
    """A call that fails leaves no generated weight behind either."""
    model = targets.moved(MappingModel(target("lstm"), 24))
    alive: list[weakref.ref[Tensor]] = []
    model.generator.register_forward_hook(
        lambda module, args, made: alive.extend(weakref.ref(weight) for weight in made.values())
    )
    try:
        model(torch.randn(3, 5, 7))
    except RuntimeError as error:
        assert "must have the last dimension equal" in str(error) or "input.size(-1) must be equal" in str(error)  # noqa: PT017 - pytest.raises would keep the frames alive, and their weights
    gc.collect()
    assert alive
    assert [reference for reference in alive if reference() is not None] == []
    assert not model.skeleton.get_parameter("layer.weight_ih_l0").data_ptr()
