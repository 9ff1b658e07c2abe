"""Lazy generation: the same function and gradient as eager generation, unit by unit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from mapping_core import MappingModel, TargetError
from tests import targets


def pair(
    target: nn.Module, latent_dim: int = 7, *, lazy: Any = True, **options: Any
) -> tuple[MappingModel, MappingModel]:
    """Return an eager and a lazy model of a target with one latent that is not 0."""
    eager = MappingModel(target, latent_dim, **options)
    late = MappingModel(target, latent_dim, lazy=lazy, **options)
    with torch.no_grad():
        eager.latent.normal_(generator=torch.Generator().manual_seed(0))
        late.latent.copy_(eager.latent)
    return eager, late


def same(eager: MappingModel, late: MappingModel, x: Tensor) -> None:
    """Hold the lazy model to the eager one: outputs (bit for bit, unless a dense product was cut) and gradients."""
    one, two = eager(x), late(x)
    if eager.mapper.name == "srht":
        assert torch.equal(one, two)
    torch.testing.assert_close(two, one)
    one.float().square().sum().backward()
    two.float().square().sum().backward()
    torch.testing.assert_close(late.latent.grad, eager.latent.grad)


@pytest.mark.parametrize("strategy", ["slvt", "layerwise"])
@pytest.mark.parametrize("mapper", ["srht", "orthogonal"])
@pytest.mark.parametrize("case", targets.CASES, ids=lambda case: case.name)
def test_same_as_eager(case: targets.Case, mapper: str, strategy: str) -> None:
    """Outputs and gradients are those of eager generation, for every target, strategy and mapper."""
    eager, late = pair(case.make(), strategy=strategy, mapper=mapper)
    same(eager, late, case.inputs())


def test_no_weight_outlives_a_call() -> None:
    """After a call, and after one that fails, the skeleton holds no generated weight and no hook."""
    _, late = pair(targets.mlp())
    late(torch.randn(2, 6))
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        late(torch.randn(2, 5))
    assert all(parameter.is_meta for parameter in late.skeleton.parameters())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in late.skeleton.modules())
    late(torch.randn(2, 6))


def test_backward_sees_the_latent_of_its_forward() -> None:
    """A latent that an optimiser writes between forward and backward does not change the gradient."""
    eager, late = pair(targets.mlp())
    x = torch.randn(4, 6)
    one, two = eager(x).square().sum(), late(x).square().sum()
    with torch.no_grad():
        late.latent.add_(1)
    one.backward()
    two.backward()
    torch.testing.assert_close(late.latent.grad, eager.latent.grad)


class Nosy(nn.Module):
    """Reads the weight of its child."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner = nn.Module()
        self.inner.child = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        child = self.inner.child
        assert isinstance(child, nn.Linear)
        return functional.linear(x, child.weight)


class Asking(nn.Module):
    """Asks its weights for dtype, device and shape before it runs the layer that owns them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.child = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        first = next(self.parameters())
        assert self.child.weight.shape == (3, 6)
        assert [first.numel(), len(first), first.size(1), first.dim()] == [18, 3, 6, 2]
        made: Tensor = self.child(x.to(first.dtype))
        return made


def test_a_weight_may_be_asked_what_it_is() -> None:
    """Type and shape of a weight may be read anywhere in the target."""
    same(*pair(nn.Sequential(Asking())), torch.randn(4, 6))


def test_a_weight_used_outside_its_module() -> None:
    """A module that reads another's weight is refused with the way out, and works when it is named."""
    root = nn.Sequential(Nosy(), nn.Tanh())
    x = torch.randn(4, 6)
    with pytest.raises(TargetError, match=r"'0.inner.child.weight' was used by linear\(\) outside .*lazy=\('path'"):
        pair(root)[1](x)
    for lazy in ("0", Nosy, ("0",)):
        same(*pair(root, lazy=lazy), x)


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True),
        lambda: nn.utils.parametrizations.weight_norm(nn.Linear(8, 3)),
        lambda: nn.Sequential(nn.utils.parametrizations.orthogonal(nn.Linear(8, 8))),
    ],
    ids=["transformer", "weight_norm", "orthogonal"],
)
def test_units_that_read_their_children(make: Any) -> None:
    """Attention and parametrised modules, which read weights that their children own, are units by themselves."""
    torch.manual_seed(0)
    same(*pair(make(), 12), torch.randn(2, 3, 8))


def test_checkpointing_around_a_lazy_model() -> None:
    """Activation checkpointing of the whole model gives the same gradient."""
    from torch.utils.checkpoint import checkpoint

    eager, late = pair(targets.mlp())
    x = torch.randn(4, 6)
    eager(x).square().sum().backward()
    checkpoint(late, x, use_reentrant=False).square().sum().backward()
    torch.testing.assert_close(late.latent.grad, eager.latent.grad)
