"""The mapper `fastfood`: nearly a dense Gaussian matrix, in two Hadamard transforms."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from mapping_core.contexts import MapperContext
from mapping_core.interfaces.mapper import Mapper
from mapping_core.random import RandomStream
from mapping_plugin_mappers._normal import normal_levels

_SIGNS, _GAUSSIAN, _ORDER = 0x66617374, 0x66617375, 0x66617376  # purposes: tell this mapper's draws from other kinds'
_DRAWN = 1 << 20  # numbers drawn at once while building


class FastfoodMapper(Mapper):
    """``G z`` in blocks ``S H diag(g_i) P H diag(b_i) pad(z)`` of m weights, concatenated and cut to n.

    H is the Sylvester-Hadamard matrix of order m, the next power of two of d; b_i are
    seeded signs, P is a seeded permutation, g_i are normal numbers, and S is the number
    ``1 / (|g_i| sqrt(d))``. So rows have norm 1: exactly when d is a power of two, else on
    average over a block. Le, Sarlos, Smola, "Fastfood: approximating kernel expansions in
    loglinear time" (2013), which draws S at random, since its rows should vary in length
    as a Gaussian matrix' do, and P for every block: here one P serves all, since b_i and
    g_i make blocks independent.

    Cost: two transforms and a permutation of about n numbers, with temporaries of n
    floats. State: one byte a weight for b and one for g, which has 256 levels; P
    takes 4 m bytes.
    """

    signs: Tensor
    gaussian: Tensor
    order: Tensor
    squares: Tensor
    left: Tensor
    right: Tensor

    def __init__(self, context: MapperContext) -> None:
        super().__init__(context.in_features, context.out_features)
        d = self.in_features
        m = 1 << (d - 1).bit_length()
        blocks = -(-self.out_features // m)

        def stream(purpose: int) -> RandomStream:
            return RandomStream(context.seed, stream=context.stream, purpose=purpose)

        gaussian = torch.empty(blocks, m, dtype=torch.int8)
        several = max(1, _DRAWN // m)
        for first in range(0, blocks, several):
            part = gaussian[first : first + several]
            part.copy_(normal_levels(stream(_GAUSSIAN), first * m, part.numel(), gaussian).view_as(part))
        # |g|^2 d as whole numbers: moving the module to another dtype does not round them.
        squares = gaussian.long().square().sum(1, keepdim=True) * d
        self.register_buffer("squares", squares, persistent=False)
        self.register_buffer("signs", stream(_SIGNS).signs(blocks * d).view(blocks, d), persistent=False)
        self.register_buffer("gaussian", gaussian, persistent=False)
        self.register_buffer("order", stream(_ORDER).words(m).argsort(stable=True).int(), persistent=False)
        # H of order m is the Kronecker product of two smaller ones: two small products
        # instead of one of m x m.
        half = (m.bit_length() - 1) // 2
        self.register_buffer("left", _hadamard(m >> half), persistent=False)
        self.register_buffer("right", _hadamard(1 << half), persistent=False)

    def forward(self, z: Tensor) -> Tensor:
        return self.rows(z, 0, self.out_features)

    def rows(self, z: Tensor, start: int, stop: int) -> Tensor:
        m = len(self.order)
        first, last = start // m, -(-stop // m)
        padded = functional.pad(z.unsqueeze(-2) * self.signs[first:last], (0, m - self.in_features))
        mixed = self._transformed(padded).index_select(-1, self.order)
        lengths = self.squares[first:last].to(z.dtype).sqrt()
        blocks = self._transformed(mixed * self.gaussian[first:last]) * (1 / lengths)
        return blocks.flatten(-2)[..., start - first * m : stop - first * m]

    def _transformed(self, blocks: Tensor) -> Tensor:
        """``H x`` for the last dimension, [..., m]."""
        grid = blocks.reshape(*blocks.shape[:-1], len(self.left), len(self.right))
        transformed: Tensor = self.left.to(grid.dtype) @ grid @ self.right.to(grid.dtype)
        return transformed.flatten(-2)


def _hadamard(order: int) -> Tensor:
    """Sylvester's matrix as int8 [order, order]; `order` is a power of two."""
    matrix = torch.ones(1, 1, dtype=torch.int8)
    while len(matrix) < order:
        matrix = torch.cat((torch.cat((matrix, matrix), 1), torch.cat((matrix, -matrix), 1)), 0)
    return matrix
