"""What `srht` does with its signs."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Self

import torch
from attrs import define
from torch import Tensor
from torch.nn import functional

from mapping_core.interfaces.mapper import LinearMap

_CACHED = 1 << 18  # numbers worth multiplying at once: a megabyte


class _Run(NamedTuple):
    """A range of outputs that is a rectangle of the grid: `columns` parts of blocks, all `width` long, in each line."""

    at: int  # where in the range that was asked for
    line: int
    lines: int
    column: int
    columns: int
    within: int  # where the parts start in their blocks
    width: int


# Not frozen: torch.compile cannot follow how attrs fills what is.
@define(eq=False)
class SignedGrid(LinearMap):
    """A grid of blocks, each a transform of the latent times signs: ``outer_j * H (inner_i * pad(z)) / sqrt(d)``.

    `inner` [r, m] and `outer` [c, m] are signs. H of order m is the Kronecker product of two smaller Hadamard
    matrices: `factor`, and its corner of order m over its own. Two small products instead of one of m x m.
    """

    size: int
    inner: Tensor
    outer: Tensor
    factor: Tensor

    @property
    def prepared_shape(self) -> tuple[int, ...]:
        return tuple(self.inner.shape)

    def prepare(self, z: Tensor) -> Tensor:
        """``H (inner_i * pad(z)) / sqrt(d)`` for every i: [..., r, m]."""
        return self._transformed(self._padded(z).unsqueeze(-2) * self.inner)

    @classmethod
    def prepare_all(cls, maps: Sequence[Self], latents: Sequence[Tensor]) -> list[Tensor]:
        """The same for several, with one transform for all latents of one size."""
        made: dict[int, Tensor] = {}
        for first, indices in _by_size(maps):
            lines = first._padded(torch.stack([latents[index] for index in indices])).unbind()
            signed = torch.cat([line * maps[index].inner for line, index in zip(lines, indices, strict=True)])
            pieces = first._transformed(signed).split_with_sizes([len(maps[index].inner) for index in indices])
            made.update(zip(indices, pieces, strict=True))
        return [made[index] for index in range(len(maps))]

    @classmethod
    def unprepare_all(cls, maps: Sequence[Self], grads: Sequence[Tensor]) -> list[Tensor]:
        made: dict[int, Tensor] = {}
        for first, indices in _by_size(maps):
            transformed = first._transformed(torch.cat([grads[index] for index in indices]), back=True)
            pieces = transformed.split_with_sizes([len(maps[index].inner) for index in indices])
            for index, piece in zip(indices, pieces, strict=True):
                made[index] = (piece * maps[index].inner).sum(0)[: first.size]
        return [made[index] for index in range(len(maps))]

    def _padded(self, z: Tensor) -> Tensor:
        lacking = self.inner.shape[-1] - self.size
        return functional.pad(z, (0, lacking)) if lacking else z

    def _transformed(self, signed: Tensor, *, back: bool = False) -> Tensor:
        """Every line [..., m] times H / sqrt(d), which is symmetric; `back` takes its factors in the other order."""
        order, half = signed.shape[-1], len(self.factor)
        # Scaling the small factor spares a pass over the result.
        left = self.factor / math.sqrt(self.size)
        right = self.factor if half * half == order else self.factor[: order // half, : order // half]
        grid = signed.view(*signed.shape[:-1], half, order // half)
        return (left @ (grid @ right) if back else left @ grid @ right).flatten(-2)

    def rows_of(self, prepared: Tensor, start: int, stop: int) -> Tensor:
        columns, order = self.outer.shape
        line = columns * order
        first, last = start // line, -(-stop // line)
        if last - first == 2 and len(self.inner) > 2:  # two rectangles are less than one around both
            middle = (first + 1) * line
            return torch.cat((self.rows_of(prepared, start, middle), self.rows_of(prepared, middle, stop)), -1)
        outer, skipped = self.outer, start - first * line
        if last - first == 1:
            left, right = skipped // order, -(-(stop - first * line) // order)
            outer, skipped = outer[left:right], skipped - left * order
        if last - first < len(self.inner):
            prepared = prepared[..., first:last, :]
        return (prepared.unsqueeze(-2) * outer).flatten(-3)[..., skipped : skipped + stop - start]

    def write(self, prepared: Tensor, start: int, base: Tensor, scale: float, out: Tensor) -> None:
        order = self.outer.shape[1]
        base = base.contiguous()
        for run in self._runs(start, start + len(out)):
            values = _strided(prepared, run.line * order + run.within, (run.lines, 1, run.width), (order, 0, 1))
            signs = _strided(self.outer, run.column * order + run.within, (run.columns, run.width), (order, 1))
            shape, strides = (run.lines, run.columns, run.width), (run.columns * order, order, 1)
            target = _strided(out, run.at, shape, strides)
            torch.addcmul(_strided(base, run.at, shape, strides), values, signs, value=scale, out=target)

    def gather(self, grads: Sequence[Tensor], scales: Sequence[float], start: int, into: Tensor) -> None:
        count = sum(grad.numel() for grad in grads)
        if len(grads) == 1 and count > _CACHED:
            self._add_sums(grads[0].contiguous().view(-1), scales[0], start, into)
            return
        order = self.outer.shape[1]
        before, after = start % order, -(start + count) % order
        blocks = into.new_empty(before + count + after)  # whole ones: fewer runs
        places = blocks.split_with_sizes([before, *(grad.numel() for grad in grads), after])
        for place, grad, scale in zip(places[1:], grads, scales, strict=False):
            torch.mul(grad.reshape(-1), scale, out=place)
        for rest in (places[0], places[-1]):
            rest.zero_()
        self._add_sums(blocks, 1.0, start - before, into)

    def _add_sums(self, grad: Tensor, scale: float, start: int, into: Tensor) -> None:
        order = self.outer.shape[1]
        for run in self._runs(start, start + len(grad)):
            signs = _strided(self.outer, run.column * order + run.within, (run.columns, run.width), (order, 1))
            sums = _strided(into, run.line * order + run.within, (run.lines, run.width), (order, 1))
            shape, strides = (run.lines, run.columns, run.width), (run.columns * order, order, 1)
            values = _strided(grad, run.at, shape, strides)
            # A few lines at a time, so that their products stay in the cache.
            step = max(1, _CACHED // signs.numel())
            if run.lines <= step:
                sums.add_((values * signs).sum(1), alpha=scale)
                continue
            for line, product in zip(torch.split(sums, step), torch.split(values, step), strict=True):
                line.add_((product * signs).sum(1), alpha=scale)

    def _runs(self, start: int, stop: int) -> Iterator[_Run]:
        """Cut a range of outputs into rectangles of the grid."""
        columns, order = self.outer.shape
        position = start
        while position < stop:
            block, within = divmod(position, order)
            line, column = divmod(block, columns)
            left = (stop - position) // order
            at = position - start
            if within or not left:  # a part of one block
                run = _Run(at, line, 1, column, 1, within, min(order - within, stop - position))
            elif column or left < columns:  # whole blocks of one line
                run = _Run(at, line, 1, column, min(columns - column, left), 0, order)
            else:  # whole lines
                run = _Run(at, line, left // columns, 0, columns, 0, order)
            yield run
            position += run.lines * run.columns * run.width


def _strided(tensor: Tensor, at: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> Tensor:
    return tensor.as_strided(shape, strides, tensor.storage_offset() + at)


def _by_size(maps: Sequence[SignedGrid]) -> Iterator[tuple[SignedGrid, list[int]]]:
    """The first of each size of latents, with the places of all that have it."""
    places: defaultdict[int, list[int]] = defaultdict(list)
    for place, each in enumerate(maps):
        places[each.size].append(place)
    for same in places.values():
        yield maps[same[0]], same
