"""D5: lazy modules. Source: Lightning issue 13764."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from mapping_core import MappingModel, TargetError
from tests import targets

ROWS, IMAGES = torch.randn(5, 6), torch.randn(5, 2, 6, 6)

LAZY: dict[str, tuple[Callable[[], nn.Module], torch.Tensor, str]] = {
    "linear": (lambda: nn.LazyLinear(3), ROWS, "parameter 'weight'"),
    "within": (lambda: nn.Sequential(nn.Linear(6, 4), nn.LazyLinear(3)), ROWS, "parameter '1.weight'"),
    "conv": (lambda: nn.Sequential(nn.LazyConv2d(3, 3), nn.ReLU()), IMAGES, "parameter '0.weight'"),
    "norm": (lambda: nn.Sequential(nn.Linear(6, 4), nn.LazyBatchNorm1d()), ROWS, "parameter '1.weight'"),
    "statistics_only": (
        lambda: nn.Sequential(nn.Linear(6, 4), nn.LazyBatchNorm1d(affine=False)),
        ROWS,
        "buffer '1.running_mean'",
    ),
}


@pytest.fixture(params=list(LAZY.values()), ids=list(LAZY))
def case(request: pytest.FixtureRequest) -> tuple[Callable[[], nn.Module], torch.Tensor, str]:
    """Give each lazy target, its inputs, and what has no shape yet."""
    made: tuple[Callable[[], nn.Module], torch.Tensor, str] = request.param
    return made


def test_before_a_forward(case: tuple[Callable[[], nn.Module], torch.Tensor, str]) -> None:
    """What has no shape yet is named, with what to do, and the module is as it was."""
    make, inputs, what = case
    target = make()
    with pytest.raises(TargetError, match=f"{what} is lazy and has no shape yet: run one batch through the target"):
        MappingModel(target, 4)
    target(inputs)


def test_after_a_forward(case: tuple[Callable[[], nn.Module], torch.Tensor, str]) -> None:
    """After one batch it is a target like any other."""
    make, inputs, _ = case
    target = make()
    target(inputs)
    model = MappingModel(target, 4, "slvt")
    assert torch.equal(model.eval()(inputs), target.eval()(inputs))
    targets.assert_equals_direct(targets.moved(model), inputs)
    assert type(model.export()) is type(target)


@pytest.mark.parametrize("make", [lambda: nn.Linear(6, 3), lambda: nn.BatchNorm1d(6)])
def test_the_meta_device(make: Callable[[], nn.Module]) -> None:
    """A target without values is refused by the first tensor that has none."""
    with torch.device("meta"):
        target = make()
    with pytest.raises(TargetError, match="parameter 'weight' is on the meta device and has no values: materialise"):
        MappingModel(target, 4)
