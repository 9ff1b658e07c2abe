"""D10: accumulation at an epoch's end. Source: Lightning issue 19987 (the last window's gradient is too small)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests import targets


def gradients(optimizer: torch.optim.Optimizer, module: nn.Module) -> list[list[Tensor]]:
    """The gradients that the optimiser is given at each step, filled as it makes them."""
    seen: list[list[Tensor]] = []

    def note(*_: Any) -> None:
        seen.append([parameter.grad.clone() for parameter in module.parameters() if parameter.grad is not None])

    optimizer.register_step_pre_hook(note)
    return seen


@pytest.mark.parametrize("last", [4, 2])
def test_the_third_step_divides_by_two(last: int) -> None:
    """10 batches, 4 a step: the third step's gradient is the mean of the last two batches', a short one included."""
    x, y = targets.rows(36 + last)
    loader = [(x[4 * index : 4 * index + 4], y[4 * index : 4 * index + 4]) for index in range(10)]
    module = targets.mlp()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.0)  # weights stay, so gradients are easy to make by hand
    seen = gradients(optimizer, module)
    made = targets.trainer_of(module, loader, optimizer=optimizer, accumulate=4, max_epochs=2)
    made.fit()
    assert made.step == 6
    for step, first in enumerate((0, 16, 32)):
        loss = functional.cross_entropy(module(x[first : first + 16]), y[first : first + 16])
        by_hand = torch.autograd.grad(loss, list(module.parameters()))
        for epoch in (0, 1):
            torch.testing.assert_close(seen[3 * epoch + step], list(by_hand))
