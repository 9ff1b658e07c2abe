"""theta = base + scale * rows, in one pass each way, for mappers that are linear.

Written as separate operations this costs several passes over tensors as large as the
weights, and fresh memory for each. Here a parameter is written once, straight from the
small `prepared` tensor of its mapper, and its gradient is read once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from attrs import define
from torch import Tensor

from mapping_core.interfaces.mapper import LinearMapper


@define(frozen=True)
class Piece:
    """A parameter as rows `start`, `start + 1`, ... of a mapper, times `scale`."""

    start: int
    shape: tuple[int, ...]
    scale: float

    @property
    def numel(self) -> int:
        """How many rows of the mapper it takes."""
        return math.prod(self.shape)

    def rows(self, rows: tuple[int, int] | None) -> Piece:
        """The piece of some rows of the parameter (None: all of it).

        >>> Piece(10, (4, 3), 1.0).rows((1, 3))
        Piece(start=13, shape=(2, 3), scale=1.0)
        """
        if rows is None:
            return self
        first, last = rows
        below = self.shape[1:]
        return Piece(self.start + first * math.prod(below), (last - first, *below), self.scale)


def write_weights(
    mapper: LinearMapper, prepared: Tensor, pieces: Sequence[Piece], bases: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    """One new tensor a piece: its base plus its scaled rows; differentiable in `prepared`, twice, and under vmap."""
    written: tuple[Tensor, ...] = _Write.apply(prepared, mapper, tuple(pieces), tuple(bases))  # type: ignore[no-untyped-call]
    return written


class _Write(torch.autograd.Function):
    @staticmethod
    def forward(
        prepared: Tensor, mapper: LinearMapper, pieces: tuple[Piece, ...], bases: tuple[Tensor | None, ...]
    ) -> tuple[Tensor, ...]:
        written = []
        for piece, base in zip(pieces, bases, strict=True):
            out = prepared.new_empty(piece.shape)
            mapper.write(prepared, piece.start, None if base is None else base.reshape(-1), piece.scale, out.view(-1))
            written.append(out)
        return tuple(written)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        prepared, ctx.mapper, ctx.pieces, _ = inputs
        ctx.like = prepared.shape
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, None, None, None]:
        present = [(piece, grad) for piece, grad in zip(ctx.pieces, grads, strict=True) if grad is not None]
        if not present:
            return None, None, None, None
        pieces, tensors = zip(*present, strict=True)
        return _Gather.apply(ctx.mapper, pieces, ctx.like, *tensors), None, None, None  # type: ignore[no-untyped-call]

    @staticmethod
    def jvp(ctx: Any, prepared: Tensor, *_: None) -> tuple[Tensor, ...]:
        moved: tuple[Tensor, ...] = _Write.apply(prepared, ctx.mapper, ctx.pieces, (None,) * len(ctx.pieces))  # type: ignore[no-untyped-call]
        return moved

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[int | None, ...],
        prepared: Tensor,
        mapper: LinearMapper,
        pieces: tuple[Piece, ...],
        bases: tuple[Tensor | None, ...],
    ) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        assert in_dims[0] is not None
        each = [_Write.apply(one, mapper, pieces, bases) for one in prepared.unbind(in_dims[0])]  # type: ignore[no-untyped-call]
        return tuple(torch.stack(same) for same in zip(*each, strict=True)), (0,) * len(pieces)


class _Gather(torch.autograd.Function):
    """The adjoint of `_Write` in `prepared`."""

    @staticmethod
    def forward(mapper: LinearMapper, pieces: tuple[Piece, ...], like: torch.Size, *grads: Tensor) -> Tensor:
        gathered = grads[0].new_zeros(like)
        for piece, grad in zip(pieces, grads, strict=True):
            mapper.gather(grad.reshape(-1), piece.start, piece.scale, gathered)
        return gathered

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.mapper, ctx.pieces = inputs[:2]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return None, None, None, *_Write.apply(grad, ctx.mapper, ctx.pieces, (None,) * len(ctx.pieces))  # type: ignore[no-untyped-call]

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[int | None, ...],
        mapper: LinearMapper,
        pieces: tuple[Piece, ...],
        like: torch.Size,
        *grads: Tensor,
    ) -> tuple[Tensor, int]:
        dims = in_dims[3:]
        lines = [
            [grad if dim is None else grad.select(dim, index) for grad, dim in zip(grads, dims, strict=True)]
            for index in range(info.batch_size)
        ]
        return torch.stack([_Gather.apply(mapper, pieces, like, *line) for line in lines]), 0  # type: ignore[no-untyped-call]
