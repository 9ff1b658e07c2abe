"""The last snapshots of a trajectory, evenly apart, and what is computed from them."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from mapping_core import BudgetError, CheckpointError

_CHUNK = 1 << 13  # numbers of each snapshot widened to float64 at once: what a cache holds


def check_shape(latent: Tensor, size: int) -> None:
    """Raise `BudgetError` unless this is the vector that the model was built for."""
    if latent.shape != (size,):
        raise BudgetError(f"a dynamics model built for {size} numbers was shown a tensor of shape {list(latent.shape)}")


def widened(latent: Tensor) -> Tensor:
    """The same numbers in float32 at least: half precision swallows what is added in small steps."""
    return latent.detach().to(torch.promote_types(latent.dtype, torch.float32))


def copied(kept: Tensor | None) -> Tensor | None:
    """A copy for a state, or from one."""
    return None if kept is None else kept.clone()


def check_kept(kept: Tensor | None, *shape: int) -> None:
    """Raise `CheckpointError` unless a tensor of a state has this shape."""
    if kept is not None and kept.shape != shape:
        raise CheckpointError(
            f"a dynamics model that keeps {list(shape)} numbers cannot go on from one of {list(kept.shape)}: "
            "build it with the options and the size that it had"
        )


class Window:
    """The last `count` vectors [size], one every `stride` steps or more, in a ring of their own dtype.

    A gap of another length than the one before, or a number that is not finite, makes what was kept
    no trajectory: it starts again. `spacing` is the number of steps between two snapshots, 0 before
    there are two; `seen_at` is the last step shown.
    """

    def __init__(self, count: int, stride: int, size: int) -> None:
        self.count = count
        self.stride = stride
        self.size = size
        self.spacing = 0
        self._ring: Tensor | None = None
        self._kept = 0
        self._newest = -1
        self._kept_at = 0
        self.seen_at = 0

    @property
    def full(self) -> bool:
        """Whether there are `count` snapshots."""
        return self._kept == self.count

    @property
    def now(self) -> float:
        """How far the last observed step lies behind the oldest snapshot, in units of `spacing`."""
        return self._kept - 1 + (self.seen_at - self._kept_at) / self.spacing

    @torch.no_grad()
    def add(self, latent: Tensor, step: int) -> bool:
        """Keep a copy if it is time to; false if what was there had to be forgotten."""
        check_shape(latent, self.size)
        gap = step - self._kept_at
        in_order = self._kept == 0 or step > self.seen_at
        if self._kept and in_order and gap < self.stride:
            self.seen_at = step
            return True
        if not bool(latent.isfinite().all()):
            self.clear()
            return False
        goes_on = in_order and (self._kept < 2 or gap == self.spacing)
        if not goes_on:
            self.clear()
        if self._kept == 1:
            self.spacing = gap
        self._store(latent)
        self._kept_at = self.seen_at = step
        return goes_on

    def clear(self) -> None:
        """Forget everything."""
        self._kept, self._newest, self.spacing = 0, -1, 0

    @torch.no_grad()
    def shift(self, delta: Tensor) -> None:
        """Move all snapshots, as after a jump."""
        if self._ring is not None:
            self._ring += delta.to(self._ring)

    @torch.no_grad()
    def combine(self, weights: Tensor) -> Tensor:
        """Weighted sums of the snapshots, oldest first: [k, count] -> [k, size]."""
        assert self._ring is not None
        ordered = torch.empty_like(weights)
        ordered[:, self._order()] = weights
        ring = widened(self._ring)
        return (ordered.to(ring) @ ring).to(self._ring.dtype)

    @torch.no_grad()
    def gram(self) -> Tensor:
        """Inner products [count, count] of the snapshots, oldest first, less their mean; float64 on the CPU."""
        assert self._ring is not None
        total = torch.zeros(self.count, self.count, dtype=torch.float64, device=self._ring.device)
        for part in torch.split(self._ring, _CHUNK, dim=1):
            centred = part.double()
            centred -= centred.mean(0)
            total += centred @ centred.T
        order = self._order()
        return total.cpu()[order][:, order]

    @torch.no_grad()
    def scatter(self) -> tuple[float, float]:
        """Of the steps from snapshot to snapshot less their mean: sums of squares, and of products of neighbours.

        Both as a mean over the numbers.
        """
        assert self._ring is not None
        rows = [self._ring[row] for row in self._order().tolist()]
        mean = (rows[-1] - rows[0]) / (self.count - 1)
        before, squares, products = None, [], []
        for start, end in pairwise(rows):
            step = (end - start - mean).float()
            squares.append(step @ step)
            if before is not None:
                products.append(step @ before)
            before = step
        sums = torch.stack([torch.stack(each).double().sum() for each in (squares, products)]) / self.size
        return float(sums[0]), float(sums[1])

    def state_dict(self) -> dict[str, Any]:
        return {
            "ring": copied(self._ring) if self._kept else None,
            "kept": self._kept,
            "newest": self._newest,
            "kept_at": self._kept_at,
            "seen_at": self.seen_at,
            "spacing": self.spacing,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        check_kept(state["ring"], self.count, self.size)
        self._ring = copied(state["ring"])
        self._kept, self._newest, self.spacing = state["kept"], state["newest"], state["spacing"]
        self._kept_at, self.seen_at = state["kept_at"], state["seen_at"]

    def _store(self, latent: Tensor) -> None:
        if self._ring is None:
            self._ring = torch.zeros(self.count, self.size, dtype=latent.dtype, device=latent.device)
        self._ring = self._ring.to(latent)  # a state may have come back on another device
        self._newest = (self._newest + 1) % self.count
        self._kept = min(self._kept + 1, self.count)
        self._ring[self._newest].copy_(latent)

    def _order(self) -> Tensor:
        """The ring's rows from oldest to newest, once it is full."""
        return (torch.arange(self.count) + self._newest + 1) % self.count
