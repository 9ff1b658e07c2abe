"""P15: scale. Source: packages whose mapping of a ResNet-18 does not fit into memory."""

from __future__ import annotations

import time

import torch
from torch import nn
from torch.nn import functional

from mapping_core import MappingModel
from mapping_core.reference.resnets import ResidualBlock
from mapping_core.training.optimization import default_optimizer
from tests import targets

LATENT_DIM = 15_000


def resnet(width: int = 96, classes: int = 10) -> nn.Sequential:
    """Return a ResNet-18 that is half as wide again: 25 million weights."""
    blocks: list[nn.Module] = []
    channels = width
    for factor, stride in ((1, 1), (2, 2), (4, 2), (8, 2)):
        blocks += [ResidualBlock(channels, factor * width, stride), ResidualBlock(factor * width, factor * width, 1)]
        channels = factor * width
    return nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        *blocks,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(channels, classes),
    )


def test_25_million_weights() -> None:
    """Through 15,000 numbers it is built within 5 s, maps with under 25 MB of state, and trains a step."""
    torch.manual_seed(0)
    target = resnet()
    assert sum(parameter.numel() for parameter in target.parameters()) > 25_000_000
    started = time.perf_counter()
    model = MappingModel(target, LATENT_DIM, share_base=True)
    assert time.perf_counter() - started < 5
    assert model.mapping_bytes() < 25e6
    assert sum(parameter.numel() for parameter in model.parameters()) == LATENT_DIM
    # More than two images: the last norms see one pixel of each, and of two numbers they leave only which is larger.
    x, labels = torch.randn(8, 3, 8, 8), torch.arange(8)
    before = [parameter.sum() for parameter in target.parameters()]
    loss = functional.cross_entropy(model(x), labels)
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer = default_optimizer(model)
    optimizer.step()
    assert model.latent.detach().abs().min() > 0
    assert float(functional.cross_entropy(model(x), labels).detach()) < float(loss.detach())
    assert all(torch.equal(parameter.sum(), then) for parameter, then in zip(target.parameters(), before, strict=True))


def test_the_state_does_not_grow_with_the_product() -> None:
    """State grows slower than the weights, and is under a byte a weight already for a few hundred thousand."""
    states = {}
    for width in (8, 16, 32):
        model = MappingModel(resnet(width), 512, "slvt")
        weights = sum(spec.numel for spec in model.layout.mapped)
        states[width] = model.mapping_bytes() / weights
    assert states[8] < 1
    assert states[32] < states[16] < states[8]


def test_lazily() -> None:
    """Lazy generation gives the same gradient for a narrow one, block by block."""
    torch.manual_seed(0)
    target = resnet(4)
    x, labels = torch.randn(4, 3, 8, 8), torch.tensor([1, 7, 0, 3])
    grads = []
    for lazy in (False, True):
        model = targets.moved(MappingModel(target, 200, lazy=lazy))
        functional.cross_entropy(model(x), labels).backward()  # type: ignore[no-untyped-call]
        assert model.latent.grad is not None
        grads.append(model.latent.grad)
    torch.testing.assert_close(grads[0], grads[1], rtol=1e-3, atol=1e-5)
