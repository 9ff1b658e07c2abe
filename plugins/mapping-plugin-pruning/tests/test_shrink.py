"""Networks without the channels that are 0."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mapping_core import MappingModel, TargetError
from mapping_core.reference.models import CNN2
from mapping_plugin_pruning import Pruned, prune, shrink


def count(module: nn.Module) -> int:
    """How many weights a module has."""
    return sum(parameter.numel() for parameter in module.parameters())


def settled(module: nn.Module, shape: tuple[int, ...]) -> nn.Module:
    """The module in evaluation mode, after its norms have seen some batches."""
    module.train()
    with torch.no_grad():
        for _ in range(3):
            module(torch.randn(16, *shape) + 0.5)
    return module.eval()


def without(module: nn.Module, **channels: int) -> nn.Module:
    """The module with the weights of the first channels of some layers set to 0, biases left alone."""
    with torch.no_grad():
        for path, number in channels.items():
            module.get_parameter(f"{path.strip('_')}.weight")[:number] = 0
    return module


def nested_norms() -> nn.Sequential:
    """Blocks with norms, whose padding needs channels that are 0; [N, 3, 8, 8] -> [N, 5]."""
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True)),
        nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.SiLU(), nn.AvgPool2d(2)),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(32, 16),
        nn.BatchNorm1d(16),
        nn.Tanh(),
        nn.Dropout(0.3),
        nn.Linear(16, 5),
    )


CASES: list[Any] = [
    pytest.param(CNN2, (1, 28, 28), id="cnn2"),
    pytest.param(nested_norms, (3, 8, 8), id="norms"),
]


@pytest.mark.parametrize(("make", "shape"), CASES)
@pytest.mark.parametrize("keep", [0.5, 0.1])
def test_pruned_channels_go(make: Callable[[], nn.Module], shape: tuple[int, ...], keep: float) -> None:
    """A network pruned by channels becomes really smaller, and computes the same."""
    torch.manual_seed(0)
    target = settled(make(), shape)
    model = MappingModel(target, 100, Pruned(method="channels")).eval()
    with torch.no_grad():
        model.latent.normal_()
    prune(model, keep)
    exported = model.export()
    small = shrink(exported)
    x = torch.randn(6, *shape)
    torch.testing.assert_close(small(x), exported(x), rtol=1e-4, atol=1e-5)
    assert count(small) < keep * 1.2 * count(exported)
    assert type(small) is type(exported)


def test_constants_become_biases() -> None:
    """What channels without weights still give, by bias and norm, goes into the next layer's bias."""
    torch.manual_seed(0)
    net: nn.Module = nn.Sequential(
        nn.Conv2d(2, 6, 3),
        nn.BatchNorm2d(6, affine=False),
        nn.Sigmoid(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 4, 2, padding=1, padding_mode="replicate", bias=False),
        nn.GELU(),
        nn.Flatten(),
        nn.Linear(4 * 16, 8, bias=False),
        nn.Identity(),
        nn.Linear(8, 3),
    )
    net = without(settled(net, (2, 8, 8)), **{"0": 2, "4": 1, "7": 3})
    small = shrink(net)
    x = torch.randn(4, 2, 8, 8)
    torch.testing.assert_close(small(x), net(x), rtol=1e-4, atol=1e-5)
    shapes = [tuple(p.shape) for name, p in small.named_parameters() if name.endswith("weight")]
    assert shapes == [(4, 2, 3, 3), (3, 4, 2, 2), (5, 48), (3, 5)]


def test_nothing_to_remove() -> None:
    """A network without zeros comes back as an equal copy."""
    net = nested_norms().eval()
    small = shrink(net)
    assert small is not net
    assert {k: v.shape for k, v in small.state_dict().items()} == {k: v.shape for k, v in net.state_dict().items()}


def test_a_layer_of_zeros_keeps_a_channel() -> None:
    """Where all channels are 0 one stays, so that there is a layer, and the outputs are what they were."""
    net = without(nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2)), **{"0": 6})
    small = shrink(net)
    assert small.get_parameter("0.weight").shape == (1, 4)
    x = torch.randn(3, 4)
    torch.testing.assert_close(small(x), net(x))


class Residual(nn.Module):
    """A sum of two paths."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        changed: Tensor = self.layer(x)
        return x + changed


class Doubled(nn.Sequential):
    """A sequence that does more."""

    def forward(self, *inputs: Tensor) -> Tensor:
        output: Tensor = self[0](*inputs)
        return 2 * output


SHARED = nn.Linear(4, 4)


@pytest.mark.parametrize(
    ("net", "message"),
    [
        (nn.Sequential(nn.Linear(4, 4), Residual(), nn.Linear(4, 2)), "'1' is of type Residual, and only a chain"),
        (nn.Sequential(nn.Linear(4, 4), Doubled(nn.Linear(4, 4))), "'1' is of type Doubled"),
        (nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 2)), "'1' is of type LayerNorm"),
        (nn.Sequential(SHARED, nn.ReLU(), SHARED), "a layer stands at two places"),
        (nn.Sequential(nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1, groups=2)), "'1' is a convolution in groups"),
        (
            nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4, track_running_stats=False)),
            "'1' has no running statistics",
        ),
        (nn.Sequential(nn.Linear(4, 4), nn.Linear(6, 2)), "'1' has 6 inputs, which is no multiple of the 4"),
        (
            without(nn.Sequential(nn.Conv2d(2, 4, 1), nn.Conv2d(4, 2, 3, padding=1)), **{"0": 2}),
            "'1' pads with zeros, and gets channels without weights.*method='channels'",
        ),
        (
            without(nn.Sequential(nn.Conv2d(2, 4, 1), nn.Conv2d(4, 2, 3, padding="same")), **{"0": 2}),
            "'1' pads with zeros",
        ),
        (
            without(nn.Sequential(nn.Conv2d(2, 4, 1), nn.AvgPool2d(2, padding=1), nn.Conv2d(4, 2, 1)), **{"0": 2}),
            "'1' averages over its padding",
        ),
    ],
)
def test_refusals(net: nn.Module, message: str) -> None:
    """Graphs that are no chain, and what would not compute the same, are refused by name."""
    with pytest.raises(TargetError, match=message):
        shrink(net)


def test_padding_of_zeros_over_zeros() -> None:
    """Averages over padding do no harm to channels that are 0."""
    net = without(
        nn.Sequential(nn.Conv2d(2, 4, 1, bias=False), nn.AvgPool2d(2, padding=1), nn.Conv2d(4, 2, 1)), **{"0": 2}
    )
    small = shrink(net)
    x = torch.randn(2, 2, 6, 6)
    torch.testing.assert_close(small(x), net(x))
    assert small.get_parameter("2.weight").shape == (2, 2, 1, 1)
