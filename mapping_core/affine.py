"""theta = base + scale * G z in one node of the graph, for mappers that are linear.

Written as separate operations this costs several passes over tensors as large as the
weights, fresh memory for each, and an operation or two a parameter each way. Here a large
parameter is written once, straight from the small `prepared` tensor of its mapper, and its
gradient is read once; small ones are made together, while they are in the cache. All
mappers of a model share one node.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate
from typing import Any

import torch
from attrs import Factory, define, field
from torch import Tensor

from mapping_core.interfaces.mapper import LinearMap, LinearMapper
from mapping_core.memory import memory_for
from mapping_core.target.inference import is_transformed

_CACHED = 1 << 17  # numbers that stay in the cache until the next operation reads them: half a megabyte


@define(frozen=True)
class Piece:
    """A parameter as rows `start`, `start + 1`, ... of a mapper, times `scale`."""

    start: int
    shape: tuple[int, ...]
    scale: float

    #: How many rows of the mapper it takes.
    numel: int = field(init=False, repr=False, default=Factory(lambda self: math.prod(self.shape), takes_self=True))

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


@define(frozen=True, eq=False)
class Part:
    """What one mapper writes."""

    mapper: LinearMapper
    pieces: tuple[Piece, ...]


def write_weights(
    parts: Sequence[Part], bases: Sequence[Tensor], latents: Sequence[Tensor], *, keep_memory: bool = False
) -> tuple[Tensor, ...]:
    """One new tensor a piece, part by part: its base plus its scaled rows of ``G z``.

    `bases` has one tensor a piece, `latents` one z [d] a part. Differentiable in the latents,
    twice, in forward mode and under vmap. With `keep_memory` that of large ones is used again
    (`mapping_core.memory`), once nobody holds them.
    """
    inputs = (tuple(parts), tuple(bases), keep_memory, *latents)
    written: tuple[Tensor, ...] = _Write.apply(*inputs)  # type: ignore[no-untyped-call]
    return written


def _groups(pieces: tuple[Piece, ...]) -> Iterator[tuple[tuple[Piece, ...], int]]:
    """Cut pieces into runs of consecutive rows that fit the cache, with their number; a larger piece is alone."""
    first, size = 0, 0
    for index, piece in enumerate(pieces):
        follows = piece.start == pieces[first].start + size
        if index > first and (not follows or size + piece.numel > _CACHED):
            yield pieces[first:index], size
            first, size = index, 0
        size += piece.numel
    yield pieces[first:], size


def _unpacked(parts: Sequence[Part], dtype: torch.dtype) -> Iterator[tuple[list[int], Sequence[LinearMap]]]:
    """The mappers of each kind together: their places among the parts, and themselves at work."""
    places: defaultdict[type[LinearMapper], list[int]] = defaultdict(list)
    for place, part in enumerate(parts):
        places[type(part.mapper)].append(place)
    for kind, same in places.items():
        yield same, kind.all_unpacked([parts[place].mapper for place in same], dtype)


def _written(
    parts: tuple[Part, ...], bases: tuple[Tensor, ...] | None, keep_memory: bool, latents: Sequence[Tensor]
) -> Iterator[Tensor]:
    """The weights of all parts; no bases count as 0."""
    ready: dict[int, tuple[LinearMap, Tensor]] = {}
    for places, maps in _unpacked(parts, latents[0].dtype):
        prepared = type(maps[0]).prepare_all(maps, [latents[place] for place in places])
        ready.update(zip(places, zip(maps, prepared, strict=True), strict=True))
    done = 0
    for place, part in enumerate(parts):
        linear, values = ready[place]
        for group, count in _groups(part.pieces):
            start = group[0].start
            if bases is not None and count > _CACHED:
                base = bases[done]
                out = memory_for(base) if keep_memory else values.new_empty(base.shape)
                linear.write(values, start, base.reshape(-1), group[0].scale, out.view(-1))
                yield out
                done += 1
                continue
            rows = linear.rows_of(values, start, start + count)
            for piece, each in zip(group, rows.split_with_sizes([piece.numel for piece in group]), strict=True):
                each = each.view(piece.shape)
                yield each * piece.scale if bases is None else torch.add(bases[done], each, alpha=piece.scale)
                done += 1


def _gathered(parts: tuple[Part, ...], grads: Sequence[Tensor]) -> list[Tensor]:
    """The gradients of all parts' latents."""
    firsts = list(accumulate((len(part.pieces) for part in parts), initial=0))
    gathered: dict[int, Tensor] = {}
    for places, maps in _unpacked(parts, grads[0].dtype):
        sums = [grads[0].new_zeros(linear.prepared_shape) for linear in maps]
        for place, linear, into in zip(places, maps, sums, strict=True):
            done = firsts[place]
            for group, _ in _groups(parts[place].pieces):
                theirs = grads[done : done + len(group)]
                linear.gather(theirs, [piece.scale for piece in group], group[0].start, into)
                done += len(group)
        gathered.update(zip(places, type(maps[0]).unprepare_all(maps, sums), strict=True))
    return [gathered[place] for place in range(len(parts))]


class _Write(torch.autograd.Function):
    @staticmethod
    def forward(
        parts: tuple[Part, ...], bases: tuple[Tensor, ...] | None, keep_memory: bool, *latents: Tensor
    ) -> tuple[Tensor, ...]:
        return tuple(_written(parts, bases, keep_memory, latents))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.parts = inputs[0]
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        parts, numbers, done = [], [], 0
        for number, part in enumerate(ctx.parts):
            theirs = grads[done : done + len(part.pieces)]
            done += len(part.pieces)
            used = tuple(piece for piece, grad in zip(part.pieces, theirs, strict=True) if grad is not None)
            if used:
                parts.append(part if len(used) == len(theirs) else Part(part.mapper, used))
                numbers.append(number)
        gathered: list[Tensor | None] = [None] * len(ctx.parts)
        present = [grad for grad in grads if grad is not None]
        for number, grad in zip(numbers, _gather(tuple(parts), present) if present else (), strict=True):
            gathered[number] = grad
        return None, None, None, *gathered

    @staticmethod
    def jvp(ctx: Any, _: None, __: None, ___: None, *latents: Tensor) -> tuple[Tensor, ...]:
        moved: tuple[Tensor, ...] = _Write.apply(ctx.parts, None, False, *latents)  # type: ignore[no-untyped-call]
        return moved

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[int | None, ...],
        parts: tuple[Part, ...],
        bases: tuple[Tensor, ...] | None,
        _: bool,
        *latents: Tensor,
    ) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        return _one_by_one(partial(_Write.apply, parts, bases, False), info.batch_size, in_dims[3:], latents)


def _gather(parts: tuple[Part, ...], grads: Sequence[Tensor]) -> tuple[Tensor, ...]:
    if not torch.is_grad_enabled() and not is_transformed():
        return _Gather.forward(parts, *grads)  # nobody differentiates it: spare autograd's own time
    gathered: tuple[Tensor, ...] = _Gather.apply(parts, *grads)  # type: ignore[no-untyped-call]
    return gathered


class _Gather(torch.autograd.Function):
    """The adjoint of `_Write` in the latents."""

    @staticmethod
    def forward(parts: tuple[Part, ...], *grads: Tensor) -> tuple[Tensor, ...]:
        if not torch.is_autocast_enabled(grads[0].device.type):
            return tuple(_gathered(parts, grads))
        # The backward pass runs inside an autocast region that the forward pass was outside of.
        with torch.autocast(grads[0].device.type, enabled=False):
            return tuple(_gathered(parts, grads))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.parts = inputs[0]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return None, *_Write.apply(ctx.parts, None, False, *grads)  # type: ignore[no-untyped-call]

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], parts: tuple[Part, ...], *grads: Tensor
    ) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        return _one_by_one(partial(_Gather.apply, parts), info.batch_size, in_dims[1:], grads)


def _one_by_one(
    run: Callable[..., tuple[Tensor, ...]], count: int, dims: tuple[int | None, ...], tensors: tuple[Tensor, ...]
) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    """The rule of vmap for both: line by line, stacked."""
    lines = (
        [tensor if dim is None else tensor.select(dim, i) for tensor, dim in zip(tensors, dims, strict=True)]
        for i in range(count)
    )
    stacked = tuple(torch.stack(same) for same in zip(*(run(*line) for line in lines), strict=True))
    return stacked, (0,) * len(stacked)
