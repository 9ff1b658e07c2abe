"""The structured default mapper."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional

from mapping_core.contexts import MapperContext
from mapping_core.interfaces.mapper import LinearMapper
from mapping_core.random import RandomStream

_CACHED = 1 << 18  # numbers worth multiplying at once: a megabyte
_INNER, _OUTER = 0x73726874, 0x73726875  # purposes: this mapper's two sets of signs


class SrhtMapper(LinearMapper):
    """Signs, Hadamard, signs: block (i, j) of the output is ``C_j * H (A_i * pad(z)) / sqrt(d)``.

    H is the Sylvester-Hadamard matrix of order m, the next power of two of d; A_i and C_j
    are seeded signs. There are r x c blocks of m weights, with r and c near the square
    root of their number, concatenated and cut to n. Every row has norm 1, and when d is a
    power of two every block is orthogonal, so ``G'G = (n/d) I`` for whole blocks.

    Cost: r transforms of m numbers (nothing beside n), then one multiplication a weight.
    State: (r + c) m signs as int8, about 2 sqrt(n m) bytes: 0.3 bytes a weight for 108,618
    weights and 2,048 numbers, 0.03 for 11 million. After Ailon and Chazelle, "The fast
    Johnson-Lindenstrauss transform" (2009), and Le, Sarlos, Smola, "Fastfood" (2013).
    """

    inner: Tensor
    outer: Tensor
    left: Tensor
    right: Tensor

    def __init__(self, context: MapperContext) -> None:
        super().__init__(context.in_features, context.out_features)
        order = 1 << (self.in_features - 1).bit_length()
        blocks = -(-self.out_features // order)
        rows = math.isqrt(blocks - 1) + 1
        columns = -(-blocks // rows)

        def signs(count: int, purpose: int) -> Tensor:
            stream = RandomStream(context.seed, stream=context.stream, purpose=purpose)
            return stream.signs(count * order).view(count, order)

        self.register_buffer("inner", signs(rows, _INNER)[:, : self.in_features].contiguous(), persistent=False)
        self.register_buffer("outer", signs(columns, _OUTER), persistent=False)
        # H of order m is the Kronecker product of two smaller ones: two small products
        # instead of one of m x m.
        half = (order.bit_length() - 1) // 2
        self.register_buffer("left", _hadamard(order >> half), persistent=False)
        self.register_buffer("right", _hadamard(1 << half), persistent=False)

    @property
    def prepared_shape(self) -> tuple[int, ...]:
        return len(self.inner), self.outer.shape[-1]

    def prepare(self, z: Tensor) -> Tensor:
        """``H (A_i * pad(z)) / sqrt(d)`` for every i: [..., r, m]."""
        signed = z.unsqueeze(-2) * self.inner
        if lacking := self.outer.shape[-1] - self.in_features:
            signed = functional.pad(signed, (0, lacking))
        grid = signed.view(*signed.shape[:-1], self.left.shape[0], self.right.shape[0])
        left, right = self._factors(z.dtype)
        return (left @ grid @ right).flatten(-2)

    def unprepare(self, grad: Tensor) -> Tensor:
        left, right = self._factors(grad.dtype)
        # The factors are symmetric.
        grid = left @ (grad.view(-1, len(left), len(right)) @ right)
        return (grid.flatten(-2)[:, : self.in_features] * self.inner).sum(0)

    def _factors(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        # Scaling the small factor spares a pass over the result.
        return self.left.to(dtype) / math.sqrt(self.in_features), self.right.to(dtype)

    def rows_of(self, prepared: Tensor, start: int, stop: int) -> Tensor:
        lines, columns, skipped = self._around(start, stop)
        # The product takes the signs as int8: a cast of our own would be kept for the backward pass.
        blocks = (prepared[..., lines, :].unsqueeze(-2) * self.outer[columns]).flatten(-3)
        return blocks[..., skipped : skipped + stop - start]

    def write(self, prepared: Tensor, start: int, base: Tensor, scale: float, out: Tensor) -> None:
        outer = self.outer.to(prepared.dtype)
        for part, lines, columns, within in self._runs(start, start + len(out)):
            values, signs = prepared[lines, None, within], outer[columns, within]
            target = out[part].view(values.shape[0], *signs.shape)
            torch.addcmul(base[part].view_as(target), values, signs, value=scale, out=target)

    def gather(self, grad: Tensor, start: int, scale: float, into: Tensor) -> None:
        if len(grad) <= _CACHED:
            lines, columns, skipped = self._around(start, start + len(grad))
            signs, sums = self.outer[columns], into[lines]
            size = len(sums) * signs.numel()
            padded = functional.pad(grad, (skipped, size - skipped - len(grad)))
            sums.add_((padded.view(len(sums), *signs.shape) * signs).sum(1), alpha=scale)
            return
        outer = self.outer.to(into.dtype)
        for part, lines, columns, within in self._runs(start, start + len(grad)):
            signs, sums = outer[columns, within], into[lines, within]
            # A few lines at a time, so that their products stay in the cache.
            step = max(1, _CACHED // signs.numel())
            products = torch.split(grad[part].view(len(sums), *signs.shape), step)
            for line, product in zip(torch.split(sums, step), products, strict=True):
                line.add_((product * signs).sum(1), alpha=scale)

    def _around(self, start: int, stop: int) -> tuple[slice, slice, int]:
        """The lines and columns of a rectangle that holds a range of outputs, and where in it they start.

        It has more than was asked for; whole lines, unless all is in one.
        """
        columns, order = self.outer.shape
        line = columns * order
        first, last = start // line, -(-stop // line)
        if last - first > 1:
            return slice(first, last), slice(None), start - first * line
        left, right = start % line // order, -(-(stop - first * line) // order)
        return slice(first, last), slice(left, right), start % line - left * order

    def _runs(self, start: int, stop: int) -> Iterator[tuple[slice, slice, slice, slice]]:
        """Cut a range of outputs into rectangles of the grid: where in the range, lines, columns, within the blocks."""
        columns, order = self.outer.shape
        position = start
        while position < stop:
            block, offset = divmod(position, order)
            line, column = divmod(block, columns)
            left = (stop - position) // order
            if offset or not left:  # a part of one block
                count = min(order - offset, stop - position)
                where = slice(line, line + 1), slice(column, column + 1), slice(offset, offset + count)
            elif column or left < columns:  # whole blocks of one line
                blocks = min(columns - column, left)
                count = blocks * order
                where = slice(line, line + 1), slice(column, column + blocks), slice(None)
            else:  # whole lines
                lines = left // columns
                count = lines * columns * order
                where = slice(line, line + lines), slice(None), slice(None)
            yield slice(position - start, position - start + count), *where
            position += count


def _hadamard(order: int) -> Tensor:
    """Sylvester's matrix as int8 [order, order]; `order` is a power of two."""
    matrix = torch.ones(1, 1, dtype=torch.int8)
    while len(matrix) < order:
        matrix = torch.cat((torch.cat((matrix, matrix), 1), torch.cat((matrix, -matrix), 1)), 0)
    return matrix
