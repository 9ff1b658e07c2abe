"""The grid: its levels, its gradient, its steps."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mapping_plugin_quantize._grid import Grid, best_step, first_step


def grid(step: float | Tensor, bits: float) -> Grid:
    """A grid of one group."""
    return Grid(torch.as_tensor(step).reshape(1), torch.tensor([bits]))


def noise(count: int = 500) -> Tensor:
    """Gaussian numbers."""
    return torch.randn(count, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("bits", range(1, 9))
def test_levels(bits: int) -> None:
    """There are 2^bits levels, a step apart; of 1 bit they are the two signs, and 0 is not among them."""
    values = torch.unique(grid(0.25, bits).rounded(torch.linspace(-40, 40, 2001), torch.ones(1)))
    levels = torch.tensor([-0.5, 0.5]) if bits == 1 else torch.arange(-(2 ** (bits - 1)), 2 ** (bits - 1)).float()
    assert torch.equal(values, levels * 0.25)


@pytest.mark.parametrize("bits", range(1, 9))
def test_what_is_on_the_grid_stays(bits: int) -> None:
    """Rounding twice is rounding once, to the bit, for a step that is no power of 2."""
    made = grid(0.3173, bits)
    once = made.values(made.integers(noise()))
    assert torch.equal(made.values(made.integers(once)), once)
    assert torch.equal(made.rounded(noise(), torch.ones(1)), once)


def test_gradient() -> None:
    """That of LSQ: 1 to z inside and 0 outside; to the step level - z / step inside, the end level outside, slowed."""
    z, step = torch.tensor([0.6, -0.9, 5.0, -5.0], requires_grad=True), torch.tensor([0.5], requires_grad=True)
    made = Grid(step, torch.tensor([3.0])).rounded(z, torch.tensor([0.1]))
    assert made.tolist() == [0.5, -1.0, 1.5, -2.0]
    each = [torch.autograd.grad(part, (z, step), retain_graph=True) for part in made]
    assert [of_z[index].item() for index, (of_z, _) in enumerate(each)] == [1, 1, 0, 0]
    expected = torch.tensor([1 - 1.2, -2 + 1.8, 3, -4]) * 0.1
    torch.testing.assert_close(torch.cat([of_step for _, of_step in each]), expected)


def test_gradient_of_signs() -> None:
    """With 1 bit z's gradient passes everywhere, or what is large could never turn; the step gets the level."""
    z, step = torch.tensor([9.0, -0.1], requires_grad=True), torch.tensor([2.0], requires_grad=True)
    made = Grid(step, torch.tensor([1.0])).rounded(z, torch.ones(1))
    assert made.tolist() == [1, -1]
    torch.autograd.backward(made[0])
    assert z.grad is not None
    assert step.grad is not None
    assert z.grad.tolist() == [1, 0]
    assert step.grad.item() == 0.5


@pytest.mark.parametrize("bits", range(1, 9))
def test_best_step(bits: int) -> None:
    """No step of a fine range has a clearly smaller error."""
    z = noise()

    def error(step: float) -> float:
        made = grid(step, bits)
        return float((made.values(made.integers(z)) - z).square().mean())

    found = float(best_step(z, bits))
    assert error(found) <= 1.02 * min(error(found * factor) for factor in torch.linspace(0.3, 3, 200).tolist())
    assert float(best_step(torch.zeros(5), bits)) == 0


def test_first_step() -> None:
    """2 mean|z| / sqrt(Q_P), and for 1 bit the step whose levels are -+ mean|z|, the best there are."""
    bits = torch.tensor([8.0, 4.0, 2.0, 1.0])
    expected = torch.tensor([2 / 127**0.5, 2 / 7**0.5, 2.0, 2.0]) * 0.7
    torch.testing.assert_close(first_step(torch.full((4,), 0.7), bits), expected)
