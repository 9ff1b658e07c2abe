"""The mapper `seeded`: a dense matrix of random signs, drawn again in every pass."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from mapping_core.contexts import MapperContext
from mapping_core.interfaces.mapper import Mapper
from mapping_core.random import RandomStream

_PURPOSE = 0x73656564  # tells this mapper's draws from other kinds'
_DRAWN = 1 << 14  # words worth drawing at once: they stay in the cache


class SeededMapper(Mapper):
    """``G z`` with G [n, d] of independent entries ``+-1/sqrt(d)``, none of them stored.

    The sign of entry (i, j) is bit j mod 32 of word ``i ceil(d/32) + j // 32`` of a Philox
    stream, so every row has norm 1 exactly. `chunk` rows at a time are unpacked, used and
    dropped, in the forward pass and again in the backward pass.

    Cost: n d / 128 Philox blocks, the unpacking of n d bits and n d multiplications each way.
    State: none beyond the seed. The dense projection of Li, Farkhoor, Liu, Yosinski,
    "Measuring the intrinsic dimension of objective landscapes" (2018), with the signs of
    Achlioptas, "Database-friendly random projections" (2003), in place of normal
    numbers: they take an eighth of the random words, and are as good.
    """

    def __init__(self, context: MapperContext, *, chunk: int) -> None:
        super().__init__(context.in_features, context.out_features)
        self.chunk = chunk
        # Operators take signed numbers of 64 bits.
        signed = context.seed - (1 << 64) if context.seed >> 63 else context.seed
        self._key = (signed, context.stream)

    def forward(self, z: Tensor) -> Tensor:
        return self.rows(z, 0, self.out_features)

    def rows(self, z: Tensor, start: int, stop: int) -> Tensor:
        if torch.compiler.is_compiling():  # an autograd.Function with jvp or vmap would break the graph
            product: Tensor = torch.ops.mapping_plugin_mappers.seeded_product(z, *self._key, start, stop, self.chunk)
            return product
        made: Tensor = _Product.apply(z, *self._key, start, stop, self.chunk)  # type: ignore[no-untyped-call]
        return made


def _blocks(
    seed: int, stream: int, d: int, start: int, stop: int, chunk: int, like: Tensor
) -> Iterator[tuple[slice, Tensor]]:
    """The signs of the rows `start` to `stop`, `chunk` at a time: which they are, and their entries [rows, d]."""
    draws = RandomStream(seed % (1 << 64), stream=stream, purpose=_PURPOSE)
    width = -(-d // 32)
    several = max(1, _DRAWN // (width * chunk)) * chunk
    shifts = torch.arange(0, 32, 8, dtype=torch.int32, device=like.device)
    signs = _signs_of_bytes(like)
    for drawn in range(start, stop, several):
        with like.device:
            # As 32-bit numbers the indices take half the time.
            words = draws.words((min(stop, drawn + several) - drawn) * width, start=drawn * width).int()
        for first, part in zip(itertools.count(drawn, chunk), torch.split(words, chunk * width), strict=False):
            index = (part[:, None] >> shifts) & 255
            block = signs.index_select(0, index.flatten()).view(-1, 32 * width)[:, :d]
            yield slice(first - start, first - start + len(block)), block


def _signs_of_bytes(like: Tensor) -> Tensor:
    """The signs that each byte stands for, lowest bit first: [256, 8]."""
    values = torch.arange(256, device=like.device)
    return (1 - 2 * ((values[:, None] >> torch.arange(8, device=like.device)) & 1)).to(like.dtype)


@torch.library.custom_op("mapping_plugin_mappers::seeded_product", mutates_args=())
def _product(z: Tensor, seed: int, stream: int, start: int, stop: int, chunk: int) -> Tensor:
    """``(G z)[start:stop]``, [..., d] -> [..., stop - start]."""
    out = z.new_empty(*z.shape[:-1], stop - start)
    for rows, block in _blocks(seed, stream, z.shape[-1], start, stop, chunk, z):
        out[..., rows] = z @ block.T
    return out.mul_(1 / math.sqrt(z.shape[-1]))


@torch.library.custom_op("mapping_plugin_mappers::seeded_adjoint", mutates_args=())
def _adjoint(v: Tensor, seed: int, stream: int, start: int, stop: int, chunk: int, d: int) -> Tensor:
    """``G[start:stop]' v``, [..., stop - start] -> [..., d]."""
    out = v.new_zeros(*v.shape[:-1], d)
    for rows, block in _blocks(seed, stream, d, start, stop, chunk, v):
        out += v[..., rows] @ block
    return out.mul_(1 / math.sqrt(d))


@_product.register_fake
def _(z: Tensor, seed: int, stream: int, start: int, stop: int, chunk: int) -> Tensor:
    return z.new_empty(*z.shape[:-1], stop - start)


@_adjoint.register_fake
def _(v: Tensor, seed: int, stream: int, start: int, stop: int, chunk: int, d: int) -> Tensor:
    return v.new_empty(*v.shape[:-1], d)


def _remember(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    first, *ctx.rest = inputs
    ctx.d = first.shape[-1]


_product.register_autograd(
    lambda ctx, grad: (_adjoint(grad, *ctx.rest, ctx.d), None, None, None, None, None), setup_context=_remember
)
_adjoint.register_autograd(
    lambda ctx, grad: (_product(grad, *ctx.rest[:-1]), None, None, None, None, None, None), setup_context=_remember
)


class _Product(torch.autograd.Function):
    """`_product` for eager mode, with forward mode and vmap."""

    @staticmethod
    def forward(z: Tensor, *rest: int) -> Tensor:
        product: Tensor = _product(z, *rest)
        return product

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _remember(ctx, inputs, output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return _Adjoint.apply(grad, *ctx.rest, ctx.d), None, None, None, None, None  # type: ignore[no-untyped-call]

    @staticmethod
    def jvp(ctx: Any, z: Tensor, *_: None) -> Tensor:
        moved: Tensor = _Product.apply(z, *ctx.rest)  # type: ignore[no-untyped-call]
        return moved

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], z: Tensor, *rest: int) -> tuple[Tensor, int]:
        assert in_dims[0] is not None
        return _Product.apply(z.movedim(in_dims[0], 0), *rest), 0  # type: ignore[no-untyped-call]


class _Adjoint(torch.autograd.Function):
    """`_adjoint` for eager mode, with vmap."""

    @staticmethod
    def forward(v: Tensor, *rest: int) -> Tensor:
        adjoint: Tensor = _adjoint(v, *rest)
        return adjoint

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _remember(ctx, inputs, output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return _Product.apply(grad, *ctx.rest[:-1]), None, None, None, None, None, None  # type: ignore[no-untyped-call]

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], v: Tensor, *rest: int) -> tuple[Tensor, int]:
        assert in_dims[0] is not None
        return _Adjoint.apply(v.movedim(in_dims[0], 0), *rest), 0  # type: ignore[no-untyped-call]
