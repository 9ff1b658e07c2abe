"""Two thin layers in the place of one: `factorize` and `export_thin`."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from mapping_core import ConfigError, MappingModel, TargetError
from mapping_core.reference.models import CNN2
from mapping_plugin_lrd import Lrd, export_thin, factorize


def network() -> nn.Sequential:
    """Convolutions with all their options, and linear layers; [N, 3, 9, 9] -> [N, 4]."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, stride=2, padding=2, dilation=2, padding_mode="reflect"),
        nn.ReLU(),
        nn.Flatten(2),
        nn.Conv1d(16, 8, 5, bias=False),
        nn.Flatten(),
        nn.Linear(8 * 21, 16),
        nn.Linear(16, 4),
    )


def inputs() -> torch.Tensor:
    """A batch for the network."""
    return torch.randn(5, 3, 9, 9, generator=torch.Generator().manual_seed(1))


def count(module: nn.Module) -> int:
    """How many numbers a module trains."""
    return sum(parameter.numel() for parameter in module.parameters())


def test_the_paper_s_count() -> None:
    """CNN2 with rank 32 on its first fully connected layer has the paper's 35,914 numbers, and runs."""
    thin = factorize(CNN2(), rank=32, layers="7")
    assert count(thin) == 35_914
    assert thin(torch.randn(2, 1, 28, 28)).shape == (2, 10)


def test_full_rank_svd_is_the_same_function() -> None:
    """At full rank the decomposition by svd computes what the module does, for every kind of layer."""
    module = network()
    ranks = {"0": 16, "3": 8, "5": 16, "6": 4}
    thin = factorize(module, rank=ranks, start="svd")
    torch.testing.assert_close(thin(inputs()), module(inputs()), rtol=1e-4, atol=1e-5)
    assert [type(thin.get_submodule(path)) for path in ranks] == [nn.Sequential] * 4
    bias = module.get_parameter("5.bias")
    assert torch.equal(thin.get_parameter("5.1.bias"), bias)
    assert thin.get_parameter("5.1.bias") is not bias


def test_svd_is_the_best_approximation() -> None:
    """Below full rank the error is the rest of the singular values."""
    layer = nn.Linear(20, 12)
    thin = factorize(layer, rank=5, layers="weight", start="svd")
    error = (thin.get_parameter("1.weight") @ thin.get_parameter("0.weight") - layer.weight).norm()
    assert error.item() == pytest.approx(torch.linalg.svdvals(layer.weight)[5:].norm().item(), rel=1e-4)


def test_draw() -> None:
    """Drawn factors have the product's standard deviation, and depend on the seed alone."""
    layer = nn.Linear(300, 200)
    one, same, other = (factorize(layer, rank=8, seed=seed) for seed in (1, 1, 2))
    product = one.get_parameter("1.weight") @ one.get_parameter("0.weight")
    assert product.std().item() == pytest.approx(1 / math.sqrt(900), rel=0.15)
    assert torch.equal(one.get_parameter("0.weight"), same.get_parameter("0.weight"))
    assert not torch.equal(one.get_parameter("0.weight"), other.get_parameter("0.weight"))


def test_the_module_is_not_touched() -> None:
    """The given module stays as it is; modes and flags go over."""
    module = network().eval()
    module.get_parameter("5.weight").requires_grad_(False)
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    thin = factorize(module, rank={"5": 2})
    assert not thin.get_submodule("5.0").training
    assert not thin.get_parameter("5.1.weight").requires_grad
    assert all(torch.equal(before[name], tensor) for name, tensor in module.state_dict().items())


def test_a_shared_layer_stays_shared() -> None:
    """A layer under two paths is one pair of thin layers under both."""
    layer = nn.Linear(30, 30)
    thin = factorize(nn.Sequential(layer, nn.ReLU(), layer), rank=2)
    assert thin.get_submodule("0") is thin.get_submodule("2")


class Tied(nn.Module):
    """An embedding and a layer of one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(30, 20)
        self.head = nn.Linear(20, 30)
        self.head.weight = self.embedding.weight


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (nn.Conv2d(4, 8, 3, groups=2), "is a convolution in groups"),
        (nn.Embedding(20, 10), "is of type Embedding, and only Linear and Conv"),
        (Tied(), r"'embedding' is of type Embedding"),
    ],
)
def test_layers_that_cannot_be_two(module: nn.Module, message: str) -> None:
    """A chosen layer that two thin ones cannot stand for is refused by name."""
    with pytest.raises(TargetError, match=message):
        factorize(module, rank=1, layers="*")


def test_shared_weights_are_refused() -> None:
    """A weight that two layers share cannot become two factors of one of them."""
    one, two = nn.Linear(20, 20), nn.Linear(20, 20)
    two.weight = one.weight
    with pytest.raises(TargetError, match="shares its weight with another module"):
        factorize(nn.Sequential(one, two), rank=2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rank": 2, "start": "random"}, "'random' is not one of draw, svd"),
        ({"rank": 2, "layers": ["fc"]}, "'fc' matches no weight"),
        ({"rank": 100}, "at rank 100 no weight becomes smaller"),
    ],
)
def test_wrong_arguments(options: dict[str, Any], message: str) -> None:
    """Arguments that fit nothing are errors that say so."""
    with pytest.raises(ConfigError, match=message):
        factorize(network(), **options)


def test_export_thin() -> None:
    """Without a base the trained model exports as thin layers that compute the same."""
    made = MappingModel(network(), 60, Lrd(rank=2, layers=("0", "3", "5")), base="zero").eval()
    thin, whole = export_thin(made), made.export()
    torch.testing.assert_close(thin(inputs()), made(inputs()), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(whole(inputs()), made(inputs()))
    assert count(thin) < count(whole)
    assert thin.get_parameter("5.0.weight").shape == (2, 168)


def test_export_thin_refuses() -> None:
    """With a base the weight has full rank; a parameter that is no layer's weight has no thin layers."""
    with pytest.raises(TargetError, match=r"base='current' a weight is theta_0 \+ U V.*base='zero'"):
        export_thin(MappingModel(network(), 20, Lrd(rank=2)))
    with pytest.raises(TargetError, match="'weight_ih_l0' is not the weight of a layer"):
        export_thin(MappingModel(nn.LSTM(8, 16), 20, Lrd(rank=2), base="zero"))
    model = MappingModel(network(), 20, Lrd(rank=2), base="zero")
    model.generator = model.generator.inner  # type: ignore[assignment]
    with pytest.raises(TargetError, match=r"use model\.export"):
        export_thin(model)
