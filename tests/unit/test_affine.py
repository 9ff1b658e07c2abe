"""Writing weights in one pass: the same numbers and derivatives as the plain operations."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from mapping_core.affine import Piece, write_weights
from mapping_core.builtin.mappers.srht import SrhtMapper
from mapping_core.contexts import MapperContext

SIZES = [(8, 200), (5, 333), (16, 16), (7, 3), (16, 1000)]


@pytest.fixture(params=SIZES, ids=str)
def case(request: pytest.FixtureRequest) -> tuple[SrhtMapper, list[Piece], list[Tensor], Tensor]:
    """A mapper, pieces that cut its rows in odd places, their bases, and a latent."""
    d, n = request.param
    generator = torch.Generator().manual_seed(d * n)
    mapper = SrhtMapper(MapperContext(in_features=d, out_features=n, seed=3))
    cuts = sorted({0, n, *torch.randint(0, n + 1, (6,), generator=generator).tolist()})
    pieces = [Piece(a, (b - a,), 0.1 * (i + 1)) for i, (a, b) in enumerate(itertools.pairwise(cuts))]
    bases = [torch.randn(piece.shape, dtype=torch.float64, generator=generator) for piece in pieces]
    z = torch.randn(d, dtype=torch.float64, generator=generator).requires_grad_()
    return mapper, pieces, bases, z


def plain(mapper: SrhtMapper, pieces: list[Piece], bases: list[Tensor], z: Tensor) -> list[Tensor]:
    """The same in plain operations."""
    output = mapper(z)
    return [
        base + piece.scale * output[..., piece.start : piece.start + piece.shape[0]]
        for piece, base in zip(pieces, bases, strict=True)
    ]


Case = tuple[SrhtMapper, list[Piece], list[Tensor], Tensor]


def test_values_and_derivatives(case: Case) -> None:
    """Values equal the plain ones, and first and second derivatives pass the finite-difference check."""
    mapper, pieces, bases, z = case

    def written(latent: Tensor) -> tuple[Tensor, ...]:
        return write_weights(mapper, mapper.prepare(latent), pieces, bases)

    for ours, theirs in zip(written(z), plain(mapper, pieces, bases, z), strict=True):
        torch.testing.assert_close(ours, theirs)
    assert torch.autograd.gradcheck(written, (z,))
    assert torch.autograd.gradgradcheck(written, (z,))


def test_transforms(case: Case) -> None:
    """vmap, forward mode and reverse mode give what they give for the plain operations."""
    mapper, pieces, bases, z = case
    many = torch.stack([z.detach(), 2 * z.detach(), -z.detach()])

    def written(latent: Tensor) -> Tensor:
        return torch.cat(write_weights(mapper, mapper.prepare(latent), pieces, bases))

    def expected(latent: Tensor) -> Tensor:
        return torch.cat(plain(mapper, pieces, bases, latent), dim=-1)

    torch.testing.assert_close(torch.func.vmap(written)(many), torch.stack([expected(one) for one in many]))
    jacobian = torch.func.jacrev(expected)(z.detach())
    torch.testing.assert_close(torch.func.jacrev(written)(z.detach()), jacobian)
    torch.testing.assert_close(torch.func.jacfwd(written)(z.detach()), jacobian)


def test_a_piece_without_gradient_is_left_out(case: Case) -> None:
    """A parameter that the loss does not use contributes nothing, and using none gives no gradient."""
    mapper, pieces, bases, z = case
    first, *_ = write_weights(mapper, mapper.prepare(z), pieces, bases)
    (gradient,) = torch.autograd.grad(first.sum(), z)
    (expected,) = torch.autograd.grad(plain(mapper, pieces, bases, z)[0].sum(), z)
    torch.testing.assert_close(gradient, expected)


def test_rows(case: Case) -> None:
    """A range of rows is that range of the whole output."""
    mapper, _, _, z = case
    n = mapper.out_features
    for start, stop in ((0, n), (n // 3, n // 2 + 1), (n - 1, n)):
        torch.testing.assert_close(mapper.rows(z, start, stop), mapper(z)[start:stop])
