"""What each of the plugin's mappers promises beyond the others."""

from __future__ import annotations

import itertools
from unittest import mock

import pytest
import torch
from torch import Tensor

from mapping_core import LinearMapper, Mapper, MapperConfig
from mapping_core.affine import Part, Piece, write_weights
from mapping_core.contexts import MapperContext
from mapping_core.random import RandomStream
from mapping_plugin_mappers import Fastfood, Hash, Mlp, Seeded
from mapping_plugin_mappers._normal import normal_levels


def build(config: MapperConfig, d: int, n: int) -> Mapper:
    """Return a mapper R^d -> R^n."""
    return config.build(MapperContext(in_features=d, out_features=n, seed=5))


def matrix(mapper: Mapper) -> Tensor:
    """Return G [n, d] in float64, by mapping the unit vectors."""
    rows: Tensor = mapper(torch.eye(mapper.in_features, dtype=torch.float64))
    return rows.T


def state(mapper: Mapper) -> int:
    """Return the bytes of state."""
    return sum(buffer.numel() * buffer.element_size() for buffer in mapper.buffers())


@pytest.mark.parametrize("k", [1, 2, 3, 8, 50])
@pytest.mark.parametrize(("d", "n"), [(8, 40), (5, 43), (1, 4), (12, 7)])
def test_hash_is_balanced(k: int, d: int, n: int) -> None:
    """Every weight has k different numbers (all of a shorter latent) as +-1/sqrt(k); each is used equally often."""
    g = matrix(build(Hash(k=k), d, n))
    terms = min(k, d)
    used = g != 0
    assert used.sum(1).tolist() == [terms] * n
    torch.testing.assert_close(g[used].abs(), torch.full((n * terms,), terms**-0.5, dtype=torch.float64))
    assert (used[: n // d * d].sum(0) == n // d * terms).all()
    torch.testing.assert_close(g.norm(dim=1), torch.ones(n, dtype=torch.float64))


def test_hash_is_an_isometry() -> None:
    """For k = 1 and whole rounds G'G = (n/d) I exactly; signs are fair and rounds differ."""
    g = matrix(build(Hash(), 12, 12 * 200))
    assert torch.equal(g.T @ g, 200 * torch.eye(12, dtype=torch.float64))
    assert abs(g.sum()) < 4 * (12 * 200) ** 0.5
    assert not torch.equal(g[:12].abs(), g[12:24].abs())


def test_hash_codes_beyond_int16() -> None:
    """A latent of more than 32,768 numbers has codes of four bytes, and works."""
    for d, size in ((1 << 15, 2), ((1 << 15) + 1, 4)):
        mapper = build(Hash(), d, d)
        assert state(mapper) == size * d
        z = torch.arange(1, d + 1, dtype=torch.float64)
        assert torch.equal(mapper(z).abs().sort().values, z)


@pytest.mark.parametrize("batch", [1, 64])
def test_hash_does_not_depend_on_the_building_batch(batch: int) -> None:
    """Drawing few rounds at a time gives what drawing all gives, and a longer mapper begins as a shorter one."""
    whole = matrix(build(Hash(k=2), 12, 400))
    with mock.patch("mapping_plugin_mappers._hash._DRAWN", batch):
        assert torch.equal(matrix(build(Hash(k=2), 12, 400)), whole)
    assert torch.equal(matrix(build(Hash(k=2), 12, 101)), whole[:101])


@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("cached", [7, 1 << 16])
def test_hash_in_one_pass(k: int, cached: int) -> None:
    """Weights written in one pass, and their first and second derivatives, are those of the plain operations."""
    mapper = build(Hash(k=k), 6, 50)
    assert isinstance(mapper, LinearMapper)
    cuts = [0, 0, 11, 30, 31, 50]
    pieces = [Piece(a, (b - a,), 0.1 * (i + 1)) for i, (a, b) in enumerate(itertools.pairwise(cuts))]
    bases = [torch.randn(piece.shape, dtype=torch.float64) for piece in pieces]
    z = torch.randn(6, dtype=torch.float64, requires_grad=True)

    def written(latent: Tensor) -> Tensor:
        return torch.cat(write_weights([Part(mapper, tuple(pieces))], bases, [latent]))

    def plain(latent: Tensor) -> Tensor:
        out = mapper(latent)
        return torch.cat([b + p.scale * out[p.start : p.start + p.numel] for p, b in zip(pieces, bases, strict=True)])

    with mock.patch("mapping_plugin_mappers._hash._CACHED", cached):
        torch.testing.assert_close(written(z), plain(z))
        torch.testing.assert_close(torch.func.jacfwd(written)(z.detach()), torch.func.jacrev(plain)(z.detach()))
        assert torch.autograd.gradcheck(written, (z,))
        assert torch.autograd.gradgradcheck(written, (z,))
    linear = mapper.unpacked(torch.float64)
    grad = torch.randn(linear.prepared_shape, dtype=torch.float64)
    torch.testing.assert_close(
        linear.unprepare_all([linear], [grad])[0], torch.autograd.grad(linear.prepare(z), z, grad)[0]
    )


@pytest.mark.parametrize("d", [1, 2, 8, 64])
def test_fastfood_rows(d: int) -> None:
    """Rows have norm 1 exactly when d is a power of two."""
    torch.testing.assert_close(
        matrix(build(Fastfood(), d, 100)).norm(dim=1), torch.ones(100, dtype=torch.float64), rtol=1e-6, atol=0
    )


def test_fastfood_rows_on_average() -> None:
    """For other d the squared norms of a whole block's rows have mean 1 exactly."""
    squares = matrix(build(Fastfood(), 37, 640)).square().sum(1)
    torch.testing.assert_close(squares.view(10, 64).mean(1), torch.ones(10, dtype=torch.float64))


def test_fastfood_looks_gaussian() -> None:
    """Its entries have the moments of a Gaussian matrix, and rows of different blocks are as good as orthogonal."""
    g = matrix(build(Fastfood(), 64, 640)) * 8
    assert abs(g.mean()) < 0.03
    assert 2.7 < g.pow(4).mean() < 3.3
    products = (g[:64] @ g[64:].T / 64).flatten()
    assert abs(products.mean()) < 0.01
    assert 0.8 < products.std() * 8 < 1.2


@pytest.mark.parametrize("d", [7, 32, 70])
def test_seeded_is_the_matrix_of_its_bits(d: int) -> None:
    """Its entries are the bits of the stream as signs, a row from a whole word on, whatever the chunk."""
    signs = matrix(build(Seeded(chunk=1), d, 30)) * d**0.5
    width = -(-d // 32)
    words = RandomStream(5, purpose=0x73656564).words(30 * width).view(30, width, 1)
    bits = ((words >> torch.arange(32)) & 1).flatten(1)[:, :d]
    torch.testing.assert_close(signs, 1.0 - 2 * bits.double())
    for chunk in (4, 64):
        assert torch.equal(matrix(build(Seeded(chunk=chunk), d, 30)) * d**0.5, signs)


def test_seeded_is_nearly_an_isometry() -> None:
    """Independent signs: `G'G` is (n/d) I but for the noise of n products, and so is the mean of all entries."""
    g = matrix(build(Seeded(), 50, 4000)) * 50**0.5
    products = (g.T @ g) / 4000 - torch.eye(50, dtype=torch.float64)
    assert products.abs().max() < 5 / 4000**0.5
    assert abs(products.std() * 4000**0.5 - 1) < 0.1
    assert abs(g.mean()) < 4 / (50 * 4000) ** 0.5


def test_seeded_draws_few_words_at_once() -> None:
    """No state, and no draw much beyond the words that stay in the cache, forward and backward."""
    mapper = build(Seeded(chunk=3), 2000, 700)
    assert state(mapper) == 0
    asked: list[int] = []
    words = RandomStream.words

    def watched(self: RandomStream, count: int, *, start: int = 0) -> Tensor:
        asked.append(count)
        return words(self, count, start=start)

    with mock.patch.object(RandomStream, "words", watched):
        z = torch.randn(2000, requires_grad=True)
        mapper(z).sum().backward()
    assert sum(asked) == 2 * 700 * 63
    assert max(asked) <= 1 << 14


def test_normal_levels_are_normal() -> None:
    """Bytes become quantiles, in steps of 1/32: mean 0, and nearly the variance and fourth moment of normal numbers."""
    made = normal_levels(RandomStream(5), 3, 100_000, torch.empty(0, dtype=torch.float64)) / 32
    words = RandomStream(5).words(2)
    data = torch.stack([(words >> shift) & 255 for shift in (0, 8, 16, 24)], 1).flatten()[3:]
    normal = torch.special.ndtri((data.double() + 0.5) / 256)
    torch.testing.assert_close(made[:5], normal, atol=0.03, rtol=0.02)
    assert abs(made.mean()) < 0.015
    assert abs(made.var() - 1) < 0.03
    assert 2.6 < (made / made.std()).pow(4).mean() < 3.1


def test_mlp_saturates() -> None:
    """Small latents give B A z; large ones are bounded, unlike a linear mapper's."""
    mapper = build(Mlp(), 16, 200)
    z = torch.randn(16, dtype=torch.float64)
    slope = torch.func.jacrev(mapper)(torch.zeros_like(z))
    torch.testing.assert_close(mapper(1e-4 * z), 1e-4 * slope @ z, rtol=1e-5, atol=1e-9)
    torch.testing.assert_close(slope.norm(dim=1), torch.ones(200, dtype=torch.float64))
    assert mapper(1e6 * z).abs().max() <= 8 * 16**0.5
    first, second = mapper.get_submodule("hidden"), mapper.get_submodule("output")
    assert not torch.equal(first.get_buffer("signs")[:16], second.get_buffer("signs")[:16])


@pytest.mark.parametrize(
    ("config", "most"), [(Hash(), 2.0), (Hash(k=4), 8.0), (Fastfood(), 2.3), (Seeded(), 0.0), (Mlp(), 0.5)], ids=repr
)
def test_state(config: MapperConfig, most: float) -> None:
    """State is what the README says, in bytes a weight, for 108,618 weights and 2,048 numbers."""
    assert state(build(config, 2048, 108_618)) <= most * 108_618
