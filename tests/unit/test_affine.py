"""Writing weights in one pass: the same numbers and derivatives as the plain operations."""

from __future__ import annotations

import itertools
from unittest import mock

import pytest
import torch
from torch import Tensor

from mapping_core.affine import Part, Piece, write_weights
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
        return write_weights([Part(mapper, tuple(pieces))], bases, [latent])

    for ours, theirs in zip(written(z), plain(mapper, pieces, bases, z), strict=True):
        torch.testing.assert_close(ours, theirs)
    assert torch.autograd.gradcheck(written, (z,))
    assert torch.autograd.gradgradcheck(written, (z,))


def test_transforms(case: Case) -> None:
    """vmap, forward mode and reverse mode give what they give for the plain operations."""
    mapper, pieces, bases, z = case
    many = torch.stack([z.detach(), 2 * z.detach(), -z.detach()])

    def written(latent: Tensor) -> Tensor:
        return torch.cat(write_weights([Part(mapper, tuple(pieces))], bases, [latent]))

    def expected(latent: Tensor) -> Tensor:
        return torch.cat(plain(mapper, pieces, bases, latent), dim=-1)

    torch.testing.assert_close(torch.func.vmap(written)(many), torch.stack([expected(one) for one in many]))
    jacobian = torch.func.jacrev(expected)(z.detach())
    torch.testing.assert_close(torch.func.jacrev(written)(z.detach()), jacobian)
    torch.testing.assert_close(torch.func.jacfwd(written)(z.detach()), jacobian)


def test_a_piece_without_gradient_is_left_out(case: Case) -> None:
    """A parameter that the loss does not use contributes nothing, and using none gives no gradient."""
    mapper, pieces, bases, z = case
    first, *_ = write_weights([Part(mapper, tuple(pieces))], bases, [z])
    (gradient,) = torch.autograd.grad(first.sum(), z)
    (expected,) = torch.autograd.grad(plain(mapper, pieces, bases, z)[0].sum(), z)
    torch.testing.assert_close(gradient, expected)


def test_rows(case: Case) -> None:
    """A range of rows is that range of the whole output."""
    mapper, _, _, z = case
    n = mapper.out_features
    for start, stop in ((0, n), (n // 3, n // 2 + 1), (n - 1, n)):
        torch.testing.assert_close(mapper.rows(z, start, stop), mapper(z)[start:stop])


def test_weights_of_one_call_survive_the_next(case: Case) -> None:
    """Two forward passes before a backward pass, and a backward pass twice, share no memory."""
    mapper, pieces, bases, z = case
    part = [Part(mapper, tuple(pieces))]
    first = write_weights(part, bases, [z])
    kept = [weight.detach().clone() for weight in first]
    second = write_weights(part, bases, [2 * z])
    assert all(torch.equal(a, b) for a, b in zip(first, kept, strict=True))
    loss = sum((weight.square().sum() for weight in (*first, *second)), z.new_zeros(()))
    (once,) = torch.autograd.grad(loss, z, retain_graph=True)
    (again,) = torch.autograd.grad(loss, z)
    assert torch.equal(once, again)


@pytest.mark.parametrize("few", [0, 1 << 13])
@pytest.mark.parametrize("cached", [4, 100])
def test_several_mappers_in_one_node(cached: int, few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mappers share a node, whether their signs are bits or bytes, and pieces large or small.

    Gradients reach each latent, None one whose weights are unused.
    """
    sizes = [(4, 90), (3, 7), (8, 130), (4, 61)]
    monkeypatch.setattr("mapping_core.builtin.mappers.srht._FEW", few)
    mappers = [SrhtMapper(MapperContext(in_features=d, out_features=n, seed=1, stream=n)) for d, n in sizes]
    monkeypatch.setattr("mapping_core.builtin.mappers.grid._CACHED", cached)
    parts = [Part(m, (Piece(0, (3,), 0.5), Piece(3, (m.out_features - 3,), 2.0))) for m in mappers]
    bases = [torch.randn(piece.shape, dtype=torch.float64) for part in parts for piece in part.pieces]
    latents = [torch.randn(d, dtype=torch.float64, requires_grad=True) for d, _ in sizes]
    with mock.patch("mapping_core.affine._CACHED", cached):
        weights = write_weights(parts, bases, latents)
        expected = [
            w for i, m in enumerate(mappers) for w in plain(m, [*parts[i].pieces], bases[2 * i : 2 * i + 2], latents[i])
        ]
        torch.testing.assert_close(list(weights), expected)
        used = [0, 1, 5, 7]
        ours = torch.autograd.grad(torch.cat([weights[i] for i in used]).sum(), latents, allow_unused=True)
        theirs = torch.autograd.grad(torch.cat([expected[i] for i in used]).sum(), latents, allow_unused=True)
        assert ours[1] is None
        kept = [0, 2, 3]
        torch.testing.assert_close([ours[i] for i in kept], [theirs[i] for i in kept])
        assert torch.autograd.gradgradcheck(lambda *z: write_weights(parts, bases, z), tuple(latents))


def test_the_adjoint_of_prepare() -> None:
    """`unprepare_all` gives the adjoint that autograd finds."""
    linear = SrhtMapper(MapperContext(in_features=5, out_features=60, seed=1)).unpacked(torch.float64)
    z = torch.randn(5, dtype=torch.float64, requires_grad=True)
    grad = torch.randn(linear.prepared_shape, dtype=torch.float64)
    torch.testing.assert_close(
        linear.unprepare_all([linear], [grad])[0], torch.autograd.grad(linear.prepare(z), z, grad)[0]
    )


def test_backward_inside_autocast(case: Case) -> None:
    """The gradient keeps its precision when the backward pass runs inside an autocast region."""
    mapper, pieces, _, _ = case
    z = torch.randn(mapper.in_features, requires_grad=True)
    bases = [torch.zeros(piece.shape) for piece in pieces]
    loss = sum((w.square().sum() for w in write_weights([Part(mapper, tuple(pieces))], bases, [z])), z.new_zeros(()))
    (expected,) = torch.autograd.grad(loss, z, retain_graph=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        (gradient,) = torch.autograd.grad(loss, z)
    assert torch.equal(gradient, expected)
