"""The grid that numbers are rounded to, and the gradient that passes it."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Grid(NamedTuple):  # torch.compile cannot follow how a frozen attrs class is made
    """Steps and levels, a number of each group or one of each latent number; any shape that broadcasts.

    A number z becomes ``step * level(z / step)``. Levels are the integers from -2^(bits-1) to
    2^(bits-1) - 1; with 1 bit -1/2 and 1/2, so that there is no 0.
    """

    step: Tensor
    bits: Tensor

    @property
    def lowest(self) -> Tensor:
        """The smallest integer that codes a level."""
        return -torch.exp2(self.bits - 1)

    @property
    def highest(self) -> Tensor:
        """The largest one; LSQ's Q_P."""
        return torch.exp2(self.bits - 1) - 1

    @property
    def shift(self) -> Tensor:
        """What is added to an integer to make a level of it."""
        return 0.5 * (self.bits == 1)

    def integers(self, z: Tensor) -> Tensor:
        """The integers of the levels nearest to `z`."""
        return torch.round(z / self.step - self.shift).clamp(self.lowest, self.highest)

    def values(self, integers: Tensor) -> Tensor:
        """The numbers that integers stand for."""
        return (integers + self.shift) * self.step

    def rounded(self, z: Tensor, slowing: Tensor) -> Tensor:
        """The numbers of the grid nearest to `z`, with a gradient for `z` and `step`.

        That of "Learned Step Size Quantization" (Esser et al., arXiv 1902.08153, equations 3 and 5): to z it
        passes inside the grid, to the step goes level - z / step inside and the level
        outside, times `slowing`. With 1 bit all of z's passes, and the step gets the level.
        """
        with torch.no_grad():
            own = Grid(self.step.detach(), self.bits)
            integers = own.integers(z.detach())
            place = z.detach() / own.step
            binary = self.bits == 1
            inside = (place >= self.lowest) & (place <= self.highest)
            to_step = integers + self.shift - torch.where(inside & ~binary, place, 0.0)
            passes = (inside | binary).to(z.dtype)
        surrogate = z * passes + self.step * (to_step * slowing)
        # Its difference from itself is 0, exactly, and carries its gradient.
        return own.values(integers) + (surrogate - surrogate.detach())


def first_step(size: Tensor, bits: Tensor) -> Tensor:
    """LSQ's start, 2 mean|z| / sqrt(Q_P), from the mean size of a group's numbers; for 1 bit levels are -+ mean|z|.

    >>> first_step(torch.tensor([1.0, 1.0]), torch.tensor([4.0, 1.0]))
    tensor([0.7559, 2.0000])
    """
    return 2 * size / torch.sqrt((torch.exp2(bits - 1) - 1).clamp_min(1.0))


def best_step(z: Tensor, bits: int) -> Tensor:
    """The step with the least squared error for the numbers of one group, of 128 that clip more or less."""
    largest = z.abs().max() / max(2 ** (bits - 1) - 1, 0.5)
    steps = (largest * torch.linspace(1 / 128, 1, 128, device=z.device, dtype=z.dtype))[:, None]
    grid = Grid(steps, torch.full_like(steps, bits))
    errors = (grid.values(grid.integers(z)) - z).square().sum(dim=1)
    best: Tensor = steps[errors.argmin(), 0]
    return best
