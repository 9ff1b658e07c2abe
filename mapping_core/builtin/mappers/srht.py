"""The structured default mapper."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor

from mapping_core.builtin.mappers.grid import SignedGrid
from mapping_core.contexts import MapperContext
from mapping_core.interfaces.mapper import LinearMapper
from mapping_core.random import RandomStream
from mapping_core.signs import pack, shifts, unpack

_INNER, _OUTER = 0x73726874, 0x73726875  # purposes: this mapper's two sets of signs
_FEW = 1 << 13  # signs whose bytes do not matter: unpacking bits takes a few operations more


class SrhtMapper(LinearMapper):
    """Signs, Hadamard, signs: block (i, j) of the output is ``C_j * H (A_i * pad(z)) / sqrt(d)``.

    H is the Sylvester-Hadamard matrix of order m, the next power of two of d; A_i and C_j
    are seeded signs. There are r x c blocks of m weights, with r and c near the square
    root of their number, concatenated and cut to n. Every row has norm 1, and when d is a
    power of two every block is orthogonal, so ``G'G = (n/d) I`` for whole blocks.

    Cost: r transforms of m numbers (nothing beside n), then one multiplication a weight.
    State: (r + c) m signs and a factor of H, about 2 sqrt(n m) bytes: 0.3 bytes a weight for 108,618
    weights and 2,048 numbers, 0.03 for 11 million; a bit each where bytes would take more than half a byte a
    weight. After Ailon and Chazelle, "The fast Johnson-Lindenstrauss transform" (2009), and Le, Sarlos, Smola,
    "Fastfood" (2013).
    """

    signs: Tensor
    shifts: Tensor

    def __init__(self, context: MapperContext) -> None:
        super().__init__(context.in_features, context.out_features)
        order = 1 << (self.in_features - 1).bit_length()
        blocks = -(-self.out_features // order)
        lines = math.isqrt(blocks - 1) + 1
        columns = -(-blocks // lines)
        factor = order >> (order.bit_length() - 1) // 2
        self._shapes = (lines, order), (columns, order), (factor, factor)

        def signs(count: int, purpose: int) -> Tensor:
            return RandomStream(context.seed, stream=context.stream, purpose=purpose).signs(count * order)

        kept = torch.cat((signs(lines, _INNER), signs(columns, _OUTER), _hadamard(factor).flatten()))
        self._sizes = [rows * width for rows, width in self._shapes]
        if len(kept) > max(_FEW, self.out_features // 2):
            bits = pack(kept)
            self._sizes.append(32 * len(bits) - len(kept))
            self.register_buffer("signs", bits, persistent=False)
            self.register_buffer("shifts", shifts(), persistent=False)
        else:
            self.register_buffer("signs", kept, persistent=False)

    @property
    def _packed(self) -> bool:
        return len(self._sizes) > len(self._shapes)

    def unpacked(self, dtype: torch.dtype) -> SignedGrid:
        """The mapper with its signs as numbers of `dtype`."""
        signs = unpack(self.signs, self.shifts, dtype) if self._packed else self.signs.to(dtype)
        return self._of(signs.split_with_sizes(self._sizes))

    @classmethod
    def all_unpacked(cls, mappers: Sequence[Self], dtype: torch.dtype) -> list[SignedGrid]:
        """The same for several, at once where a sign is a byte."""
        bytewise = [mapper for mapper in mappers if not mapper._packed]
        if len(bytewise) < 2:
            return [mapper.unpacked(dtype) for mapper in mappers]
        together = torch.cat([mapper.signs for mapper in bytewise]).to(dtype)
        pieces = iter(together.split_with_sizes([size for mapper in bytewise for size in mapper._sizes]))
        return [
            mapper.unpacked(dtype) if mapper._packed else mapper._of((next(pieces), next(pieces), next(pieces)))
            for mapper in mappers
        ]

    def _of(self, pieces: Sequence[Tensor]) -> SignedGrid:
        inner, outer, factor = (piece.view(shape) for piece, shape in zip(pieces, self._shapes, strict=False))
        return SignedGrid(size=self.in_features, inner=inner, outer=outer, factor=factor)


def _hadamard(order: int) -> Tensor:
    """Sylvester's matrix as int8 [order, order]; `order` is a power of two."""
    matrix = torch.ones(1, 1, dtype=torch.int8)
    while len(matrix) < order:
        matrix = torch.cat((torch.cat((matrix, matrix), 1), torch.cat((matrix, -matrix), 1)), 0)
    return matrix
