"""The gradient of a window: weighted by items, clipped, and of nothing but its own batches."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from mapping_core.training.config import TrainerConfig
from mapping_core.training.engine import make_fabric
from mapping_core.training.gradients import GradientWindow

FABRIC = make_fabric(TrainerConfig(accelerator="cpu"))


def window(*parameters: Tensor, **options: Any) -> GradientWindow:
    """Return a window over these parameters."""
    return GradientWindow(FABRIC, parameters, TrainerConfig(**options))


def weight() -> nn.Parameter:
    """Return a parameter in float64."""
    return nn.Parameter(torch.tensor([1.0, -2.0], dtype=torch.float64))


@settings(deadline=None)
@given(batches=st.lists(st.lists(st.floats(-9, 9), max_size=4), min_size=1, max_size=5))
def test_a_window_is_the_mean_over_its_items(batches: list[list[float]]) -> None:
    """Whatever the sizes, empty ones included, gradient and loss are those of all items as one batch."""
    parameter, all_items = weight(), [item for batch in batches for item in batch]
    made = window(parameter)
    for batch in batches:
        items = torch.tensor(batch, dtype=torch.float64)
        made.add((items[:, None] * parameter.square()).sum(1).mean() if batch else parameter.sum() * 0.0, len(batch))
    agreed = made.agree(ended=False)
    assert (agreed.items, agreed.bad, agreed.ended) == (len(all_items), False, False)
    if not all_items:
        assert parameter.grad is None
        return
    mean = sum(all_items) / len(all_items)
    assert parameter.grad is not None
    torch.testing.assert_close(parameter.grad, 2 * mean * parameter.detach(), rtol=1e-9, atol=1e-9)
    assert float(agreed.loss) == pytest.approx(mean * 5.0, rel=1e-6, abs=1e-6)


def test_one_batch_is_not_touched() -> None:
    """With one batch the gradient is that of a plain loop, bit for bit."""
    ours, plain = nn.Parameter(torch.rand(50)), nn.Parameter(torch.zeros(50))
    plain.data.copy_(ours.data)
    made = window(ours)
    made.add((ours / 3.0).exp().mean(), 7)
    made.agree(ended=False)
    (plain / 3.0).exp().mean().backward()  # type: ignore[no-untyped-call]
    assert ours.grad is not None
    assert plain.grad is not None
    assert torch.equal(ours.grad, plain.grad)


def test_a_refused_batch_marks_its_window() -> None:
    """Behind a refused batch nothing is added; a cleared window is a new one."""
    parameter = weight()
    made = window(parameter)
    made.refuse()
    made.add(parameter.sum(), 3)
    agreed = made.agree(ended=True)
    assert (agreed.bad, agreed.items, agreed.ended, made.batches) == (True, 0, True, 2)
    assert parameter.grad is None
    made.add(parameter.sum(), 3)
    made.clear()
    assert (made.batches, made.items, made.bad, parameter.grad) == (0, 0, False, None)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [3.0, -4.0]),
        ({"clip_norm": 1.0}, [0.6, -0.8]),
        ({"clip_norm": 9.0}, [3.0, -4.0]),
        ({"clip_value": 3.5}, [3.0, -3.5]),
    ],
)
def test_clipping(options: dict[str, float], expected: list[float]) -> None:
    """By norm, by value, or not at all; the norm before is returned."""
    parameter = weight()
    made = window(parameter, **options)
    made.add((parameter * torch.tensor([3.0, -4.0])).sum(), 1)
    assert made.clip() == 5.0
    assert parameter.grad is not None
    torch.testing.assert_close(parameter.grad, torch.tensor(expected, dtype=torch.float64), rtol=1e-5, atol=0.0)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_norm_that_is_not_finite(value: float) -> None:
    """It is returned as it is, and the numbers are left for whoever looks at them."""
    parameter = weight()
    made = window(parameter, clip_norm=1.0)
    made.add((parameter * torch.tensor([1.0, value])).sum(), 1)
    assert not made.clip() < float("inf")
    assert parameter.grad is not None
    assert parameter.grad[0] == 1.0


def test_without_gradients() -> None:
    """Parameters that no batch reached have a norm of 0."""
    assert window(weight()).clip() == 0.0
