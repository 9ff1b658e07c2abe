"""The mappers of core: what every fixed linear map promises, and what each kind adds."""

from __future__ import annotations

import copy
import hashlib
import pickle
from unittest import mock

import pytest
import torch
from torch import Tensor

from mapping_core import BudgetError, Mapper, MapperConfig
from mapping_core.builtin.mappers import Orthogonal, Srht
from mapping_core.contexts import MapperContext

KINDS = [Srht(), Orthogonal()]
FEW = "mapping_core.builtin.mappers.srht._FEW"
# d a power of two and not, n < d, n = 1, d = 1, whole blocks and cut ones
SIZES = [(8, 40), (8, 64), (5, 40), (12, 7), (16, 3), (1, 9), (9, 1), (1, 1), (33, 100)]


def build(config: MapperConfig, d: int, n: int, *, seed: int = 0, stream: int = 0) -> Mapper:
    """Return a mapper R^d -> R^n."""
    return config.build(MapperContext(in_features=d, out_features=n, seed=seed, stream=stream))


def matrix(mapper: Mapper) -> Tensor:
    """Return G [n, d] in float64, by mapping the unit vectors."""
    rows: Tensor = mapper(torch.eye(mapper.in_features, dtype=torch.float64))
    return rows.T


@pytest.fixture(params=KINDS, ids=lambda config: config.name)
def config(request: pytest.FixtureRequest) -> MapperConfig:
    """Give each kind in turn."""
    made: MapperConfig = request.param
    return made


@pytest.mark.parametrize(("d", "n"), SIZES)
def test_rows_have_unit_norm(config: MapperConfig, d: int, n: int) -> None:
    """Every row of G has norm 1, so one learning rate fits every size."""
    g = matrix(build(config, d, n))
    assert g.shape == (n, d)
    torch.testing.assert_close(g.norm(dim=1), torch.ones(n, dtype=torch.float64), atol=1e-6, rtol=0)


@pytest.mark.parametrize(("d", "n"), [(8, 64), (16, 64), (1, 4)])
def test_whole_blocks_are_orthogonal(config: MapperConfig, d: int, n: int) -> None:
    """Each block of d rows is orthogonal, hence G'G = (n/d) I."""
    g = matrix(build(config, d, n))
    eye = torch.eye(d, dtype=torch.float64)
    for block in torch.split(g, d):
        torch.testing.assert_close(block @ block.T, eye, atol=1e-6, rtol=0)
    torch.testing.assert_close(g.T @ g, n / d * eye, atol=1e-5, rtol=0)


@pytest.mark.parametrize(("d", "n"), SIZES)
def test_linear_and_zero_at_zero(config: MapperConfig, d: int, n: int) -> None:
    """G is linear, and maps 0 to exactly 0."""
    mapper = build(config, d, n)
    a, b = torch.randn(2, d, dtype=torch.float64)
    torch.testing.assert_close(mapper(2 * a - b), 2 * mapper(a) - mapper(b))
    assert not mapper(torch.zeros(d)).any()


@pytest.mark.parametrize(("d", "n"), SIZES)
def test_gradient_is_the_adjoint(config: MapperConfig, d: int, n: int) -> None:
    """<G z, v> = <z, G'v> with autograd's G', to double precision."""
    mapper = build(config, d, n)
    z = torch.randn(d, dtype=torch.float64, requires_grad=True)
    v = torch.randn(n, dtype=torch.float64)
    forward = mapper(z) @ v
    (adjoint,) = torch.autograd.grad(forward, z)
    torch.testing.assert_close(forward, z @ adjoint, rtol=1e-12, atol=1e-12)


def test_gradcheck(config: MapperConfig) -> None:
    """First and second derivatives are those of finite differences."""
    mapper = build(config, 5, 11)
    z = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(mapper, z)
    assert torch.autograd.gradgradcheck(mapper, z)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_batch_dimensions_and_dtypes(config: MapperConfig, dtype: torch.dtype) -> None:
    """[..., d] becomes [..., n] of the same dtype, each row as if alone; empty batches too."""
    mapper = build(config, 6, 20)
    z = torch.randn(2, 3, 6, dtype=dtype)
    out = mapper(z)
    assert out.shape == (2, 3, 20)
    assert out.dtype == dtype
    torch.testing.assert_close(out[1, 2], mapper(z[1, 2]))
    torch.testing.assert_close(mapper(z.mT.contiguous().mT), out)
    assert mapper(torch.empty(0, 6, dtype=dtype)).shape == (0, 20)


def test_vmap(config: MapperConfig) -> None:
    """`vmap` over latents, in any dimension, gives what a batch gives."""
    mapper = build(config, 6, 20)
    z = torch.randn(6, 4)
    torch.testing.assert_close(torch.func.vmap(mapper, in_dims=1)(z), mapper(z.T))


def test_same_seed_same_bits(config: MapperConfig) -> None:
    """Two mappers of one context are equal bit for bit, whatever torch's generator does."""
    z = torch.randn(12)
    torch.manual_seed(1)
    first = build(config, 12, 50, seed=3, stream=2)(z)
    torch.manual_seed(2)
    assert torch.equal(build(config, 12, 50, seed=3, stream=2)(z), first)


@pytest.mark.parametrize("other", [{"seed": 4}, {"seed": 3 + 2**40}, {"seed": 3, "stream": 1}])
def test_other_seed_or_stream_differs(config: MapperConfig, other: dict[str, int]) -> None:
    """Another seed or stream gives an unrelated map: the correlation of the entries is that of chance."""
    own, foreign = (matrix(build(config, 16, 256, **each)) for each in ({"seed": 3}, other))
    assert abs((own * foreign).mean() * 16) < 4 / 64


def test_nothing_trains_and_nothing_is_saved(config: MapperConfig) -> None:
    """A mapper has no parameters, and its state never goes to a file."""
    mapper = build(config, 8, 30)
    assert not list(mapper.parameters())
    assert not mapper.state_dict()
    assert "8 -> 30" in repr(mapper)


@pytest.mark.parametrize(("dynamic", "few"), [(False, 0), (True, 0), (False, 1 << 13), (True, 1 << 13)])
def test_compiled_parity(config: MapperConfig, dynamic: bool, few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled without a graph break, output and gradient are the same, whatever keeps the signs."""
    monkeypatch.setattr(FEW, few)
    torch.compiler.reset()
    mapper = build(config, 6, 20)
    compiled = torch.compile(mapper, backend="aot_eager", fullgraph=True, dynamic=dynamic)
    z = torch.randn(4, 6, requires_grad=True)
    expected, made = mapper(z), compiled(z)
    torch.testing.assert_close(made, expected)
    (one,), (two,) = (torch.autograd.grad(out.square().sum(), z) for out in (expected, made))
    torch.testing.assert_close(two, one)


@pytest.mark.parametrize("d", [1, 100, 2048, 16_384, 65_536])
def test_srht_state_is_small(d: int) -> None:
    """For 108,618 weights srht keeps at most half a byte a weight, for latents of up to 65,536 numbers."""
    mapper = build(Srht(), d, 108_618)
    state = sum(buffer.numel() * buffer.element_size() for buffer in mapper.buffers())
    assert state <= 108_618 / 2


@pytest.mark.parametrize(("d", "n"), [*SIZES, (50, 70)])
def test_signs_as_bits_are_the_same_signs(d: int, n: int) -> None:
    """Kept as bits or as bytes, the map and its gradient are the same, the map bit for bit."""
    bytewise = build(Srht(), d, n)
    with mock.patch(FEW, 0):
        packed = build(Srht(), d, n)
    assert packed.get_buffer("signs").dtype == (torch.int8 if n >= 2 * (d + n + d) else torch.int32)
    assert sum(buffer.nbytes for buffer in packed.buffers()) < 128 + 40 + bytewise.get_buffer("signs").nbytes
    for dtype in (torch.float32, torch.float64):
        z = torch.randn(d, dtype=dtype, requires_grad=True)
        made = [mapper(z) for mapper in (packed, bytewise)]
        assert torch.equal(*made)
        torch.testing.assert_close(*(torch.autograd.grad(out.square().sum(), z)[0] for out in made))


@pytest.mark.parametrize("few", [0, 1 << 13])
def test_srht_golden(few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """These bytes are in files that exist, whatever keeps the signs: a change needs a new random.VERSION."""
    monkeypatch.setattr(FEW, few)
    # Small integers and d a power of four: every sum is exact, on any machine.
    z = torch.arange(16, dtype=torch.float32) - 5
    made = build(Srht(), 16, 100, seed=0x0123456789ABCDEF, stream=7)(z)
    assert (made * 4).tolist()[:6] == [16.0, 8.0, 8.0, -16.0, 8.0, 32.0]
    digest = hashlib.sha256(made.numpy().tobytes()).hexdigest()
    assert digest == "8414679d66a80783abd850c4b8c83ac0876e15c7f546006cffc437114d222fa2"


def test_orthogonal_golden() -> None:
    """The first outputs are those they have always been; libraries differ in the last digits of a QR decomposition."""
    made = build(Orthogonal(), 16, 100, seed=0x0123456789ABCDEF, stream=7)(torch.arange(16.0) - 5)
    torch.testing.assert_close(made[:4], torch.tensor([4.9320, -10.9996, 4.7614, 0.8563]), rtol=0, atol=1e-3)


def test_same_bits_whatever_happens_around(config: MapperConfig) -> None:
    """Outputs and gradients are equal bit for bit for another number of threads, after copies and conversions."""
    # Small whole numbers: what is left to differ is the mapper, not the order of sums.
    z = (torch.arange(64.0) % 7 - 3).requires_grad_()

    def made(mapper: Mapper) -> tuple[Tensor, Tensor]:
        out = mapper(z)
        return out.detach(), torch.autograd.grad(out.sum(), z)[0]

    expected = made(build(config, 64, 3000))
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        others = [made(build(config, 64, 3000))]
    finally:
        torch.set_num_threads(before)
    mapper = build(config, 64, 3000)
    others.append(made(copy.deepcopy(mapper)))
    others.append(made(pickle.loads(pickle.dumps(mapper))))  # noqa: S301 - our own bytes
    others.append(made(mapper.bfloat16().float()))
    for found in others:
        assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def test_orthogonal_refuses_to_be_large() -> None:
    """A matrix beyond max_bytes is refused before it is made, with the size and the way out."""
    assert build(Orthogonal(max_bytes=4 * 8 * 30), 8, 30).out_features == 30
    with pytest.raises(BudgetError, match=r"1,000 MB \(1,000,000 weights x 250 numbers\).*mapper='srht'"):
        build(Orthogonal(max_bytes=10**6), 250, 10**6)
    with pytest.raises(ValueError, match="max_bytes"):
        Orthogonal(max_bytes=0)
