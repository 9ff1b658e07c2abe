"""The plugin's mappers: what every mapper promises."""

from __future__ import annotations

import copy
import hashlib
import pickle
import tempfile
from pathlib import Path

import pytest
import torch
from attrs import define
from torch import Tensor

import mapping_core
import mapping_core.builtin
import mapping_plugin_mappers
from mapping_core import Mapper, MapperConfig, MappingModel, Registry
from mapping_core.contexts import MapperContext
from mapping_core.random import RandomStream
from mapping_core.testing import MapperSuite
from mapping_plugin_mappers import Fastfood, Hash, Mlp, Seeded, Trajectory
from mapping_plugin_mappers._basis import write_basis


@define(frozen=True, kw_only=True)
class AnyTrajectory(MapperConfig):
    """`trajectory` with a basis of the size that is asked for, of signs; what a run gives is tested apart."""

    name = "any_trajectory"

    def build(self, context: MapperContext) -> Mapper:
        d, n = context.in_features, context.out_features
        directions = RandomStream(context.seed, stream=context.stream).signs(d * n).view(d, n) / n**0.5
        with tempfile.TemporaryDirectory() as folder:
            write_basis(Path(folder) / "basis", directions, torch.ones(d))
            return Trajectory(path=Path(folder) / "basis").build(context)


class TestTrajectory(MapperSuite):
    """What every mapper promises, of `trajectory` with a basis for each size."""

    component = AnyTrajectory
    expected_failures = {"imports_no_torch": "this wrapper of it lives among tests, which import torch"}


LINEAR: list[MapperConfig] = [Hash(), Hash(k=4), Fastfood(), Seeded(chunk=7), AnyTrajectory()]
KINDS: list[MapperConfig] = [*LINEAR, Mlp(), Mlp(hidden=5)]
# d a power of two and not, n < d, n = 1, d = 1, whole blocks and cut ones
SIZES = [(8, 40), (8, 64), (5, 40), (12, 7), (16, 3), (1, 9), (9, 1), (1, 1), (33, 100)]
#: SHA-256 of 100 outputs for 16 small integers: these bytes are in files that exist.
GOLDEN = [
    (Hash(), "1839b15e9580e597e6d1ebef2ef135b696fc34d26582464ed5b8a3708d80c147"),
    (Hash(k=4), "1867eae106ec758f37a63db01a7adf62e3a62ffacc3f45ee07b2693cd5f601da"),
    (Fastfood(), "f1fea1173a014a833feb43eca1c95f0975dab552035bfb580820b6cb984a1f2b"),
    (Seeded(), "bb18b6583f6af24e77c3540ffcff06376e9d1334ceb077ffb4e814c2c9fbf4b6"),
    (Seeded(chunk=7), "bb18b6583f6af24e77c3540ffcff06376e9d1334ceb077ffb4e814c2c9fbf4b6"),
    (AnyTrajectory(), "76a39c582566cb1749b5356ab2ab4ef0d9f8bd38566446c635b2f50837fd8684"),
]
SEED = 0x0123456789ABCDEF


def build(config: MapperConfig, d: int, n: int, *, seed: int = 0, stream: int = 0) -> Mapper:
    """Return a mapper R^d -> R^n."""
    return config.build(MapperContext(in_features=d, out_features=n, seed=seed, stream=stream))


def matrix(mapper: Mapper) -> Tensor:
    """Return the slope at 0, [n, d] in float64; G of a linear mapper."""
    jacobian: Tensor = torch.func.jacrev(mapper)(torch.zeros(mapper.in_features, dtype=torch.float64))
    return jacobian


def latent(dtype: torch.dtype = torch.float32) -> Tensor:
    """Small integers: all sums of 16 of them are exact."""
    return torch.arange(16, dtype=dtype) - 5


def digest(output: Tensor) -> str:
    """Return the SHA-256 of float32 numbers."""
    return hashlib.sha256(output.detach().float().contiguous().numpy().tobytes()).hexdigest()


@pytest.fixture(params=KINDS, ids=repr)
def config(request: pytest.FixtureRequest) -> MapperConfig:
    """Give each kind in turn."""
    made: MapperConfig = request.param
    return made


def test_registered() -> None:
    """The plugin adds five mappers through its entry point, at core's version."""
    registry = Registry.discover()
    assert {"hash", "fastfood", "seeded", "mlp", "trajectory"} <= set(registry.mappers.names())
    for made in (Hash(), Fastfood(), Seeded(), Mlp()):
        assert registry.resolve(MapperConfig, made.name) == made
        assert registry.supplier(made) == f"mapping-plugin-mappers {mapping_plugin_mappers.__version__}"
    assert mapping_plugin_mappers.__version__ == mapping_core.__version__


def test_spellings() -> None:
    """A table gives the fields, and refuses what is not one or not allowed."""
    registry = Registry.of(mapping_core.builtin, mapping_plugin_mappers)
    assert registry.resolve(MapperConfig, {"type": "hash", "k": 4}) == Hash(k=4)
    assert registry.resolve(MapperConfig, {"type": "mlp", "hidden": 9}) == Mlp(hidden=9)
    for table in ({"type": "hash", "k": 0}, {"type": "seeded", "chunk": 0}, {"type": "mlp", "hidden": 0}):
        with pytest.raises(ValueError, match=r"must be >= 1|at least 1"):
            registry.resolve(MapperConfig, table)


@pytest.mark.parametrize(("d", "n"), SIZES)
def test_zero_at_zero_and_shapes(config: MapperConfig, d: int, n: int) -> None:
    """0 goes to exactly 0, and [..., d] becomes [..., n], for every size."""
    mapper = build(config, d, n)
    assert mapper(torch.zeros(2, d)).shape == (2, n)
    assert not mapper(torch.zeros(d)).any()


@pytest.mark.parametrize("config", LINEAR, ids=repr)
@pytest.mark.parametrize(("d", "n"), SIZES)
def test_linear(config: MapperConfig, d: int, n: int) -> None:
    """A linear mapper is linear, and autograd's G' is its adjoint: <G z, v> = <z, G'v> to double precision."""
    mapper = build(config, d, n)
    a, b = torch.randn(2, d, dtype=torch.float64)
    torch.testing.assert_close(mapper(2 * a - b), 2 * mapper(a) - mapper(b))
    z, v = a.requires_grad_(), torch.randn(n, dtype=torch.float64)
    forward = mapper(z) @ v
    (adjoint,) = torch.autograd.grad(forward, z)
    torch.testing.assert_close(forward, z @ adjoint, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("config", [Hash(), Hash(k=4), Seeded(), AnyTrajectory()], ids=repr)
@pytest.mark.parametrize(("d", "n"), SIZES)
def test_rows_have_unit_norm(config: MapperConfig, d: int, n: int) -> None:
    """Every row of those that say so has norm 1, so one learning rate fits every size."""
    norms = matrix(build(config, d, n)).norm(dim=1)
    torch.testing.assert_close(norms, torch.ones(n, dtype=torch.float64), atol=1e-6, rtol=0)


def test_small_latents_keep_their_size(config: MapperConfig) -> None:
    """The mean squared norm of rows of the slope at 0 is 1."""
    squares = matrix(build(config, 24, 2048)).square().sum(1)
    assert abs(squares.mean().item() - 1) < 4 * max(squares.std().item(), 1e-5) / 2048**0.5


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


def test_transforms(config: MapperConfig) -> None:
    """`vmap` in any dimension gives what a batch gives, and forward mode what reverse mode gives, vmapped or not."""
    mapper = build(config, 6, 20)
    z = torch.randn(6, 4)
    torch.testing.assert_close(torch.func.vmap(mapper, in_dims=1)(z), mapper(z.T))
    reverse = torch.func.vmap(torch.func.jacrev(mapper), in_dims=1)(z)
    torch.testing.assert_close(torch.func.vmap(torch.func.jacfwd(mapper), in_dims=1)(z), reverse)
    moved = torch.func.jvp(mapper, (z[:, 0],), (z[:, 1],))[1]
    torch.testing.assert_close(moved, reverse[0] @ z[:, 1])


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled_parity(config: MapperConfig, dynamic: bool) -> None:
    """Compiled without a graph break, output and gradient are the same."""
    torch.compiler.reset()
    mapper = build(config, 6, 20, seed=2**64 - 3)
    compiled = torch.compile(mapper, backend="aot_eager", fullgraph=True, dynamic=dynamic)
    z = torch.randn(4, 6, requires_grad=True)
    expected, made = mapper(z), compiled(z)
    torch.testing.assert_close(made, expected)
    (one,), (two,) = (torch.autograd.grad(out.square().sum(), z) for out in (expected, made))
    torch.testing.assert_close(two, one)


@pytest.mark.parametrize(("d", "n"), SIZES)
def test_rows(config: MapperConfig, d: int, n: int) -> None:
    """A range of rows is that range of the whole output."""
    mapper = build(config, d, n)
    z = torch.randn(2, d, dtype=torch.float64)
    for start, stop in ((0, n), (n // 3, n // 2 + 1), (n - 1, n)):
        torch.testing.assert_close(mapper.rows(z, start, stop), mapper(z)[..., start:stop])


@pytest.mark.parametrize(("config", "expected"), GOLDEN, ids=repr)
def test_golden(config: MapperConfig, expected: str) -> None:
    """The bytes are those they have always been, for any number of threads, after conversions and copies."""
    mapper = build(config, 16, 100, seed=SEED, stream=7)
    before = torch.get_num_threads()
    for threads in (1, 3):
        torch.set_num_threads(threads)
        try:
            assert digest(mapper(latent())) == expected
        finally:
            torch.set_num_threads(before)
    assert digest(copy.deepcopy(mapper)(latent())) == expected
    assert digest(pickle.loads(pickle.dumps(mapper))(latent())) == expected  # noqa: S301 - our own bytes
    assert digest(mapper.to(torch.bfloat16).to(torch.float64).float()(latent())) == expected


def test_golden_mlp() -> None:
    """The first outputs of `mlp` are those they have always been; libraries differ in the last digits of tanh."""
    made = build(Mlp(), 16, 100, seed=SEED, stream=7)(latent() / 8)[:4]
    torch.testing.assert_close(made, torch.tensor([0.3076, -0.4326, -0.1290, -0.3709]), rtol=0, atol=1e-4)


@pytest.mark.parametrize("config", [Hash(), Hash(k=4)], ids=repr)
def test_same_bits_whatever_happens_around(config: MapperConfig) -> None:
    """Any outputs and gradients of `hash` are equal bit for bit for another number of threads."""
    z = torch.randn(2048, requires_grad=True)
    found = []
    before = torch.get_num_threads()
    for threads in (1, 3):
        torch.set_num_threads(threads)
        try:
            out = build(config, 2048, 100_000)(z)
            found.append((out.detach(), *torch.autograd.grad(out.square().sum(), z)))
        finally:
            torch.set_num_threads(before)
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


@pytest.mark.parametrize("other", [{"seed": 4}, {"seed": 3 + 2**63}, {"seed": 3, "stream": 1}])
def test_other_seed_or_stream_differs(config: MapperConfig, other: dict[str, int]) -> None:
    """Another seed or stream gives an unrelated map: the correlation of the entries is that of chance."""
    own, foreign = (matrix(build(config, 16, 256, **each)) for each in ({"seed": 3}, other))
    assert abs((own * foreign).mean() * 16) < 4 / 64


def test_in_a_model(config: MapperConfig) -> None:
    """A model with any strategy at hand starts as its target and gets gradient."""
    strategies = [name for name in ("slvt", "layerwise") if name in Registry.discover().generators]
    if not strategies:
        pytest.skip("no strategy is installed")
    target = torch.nn.Sequential(torch.nn.Linear(6, 9), torch.nn.Linear(9, 3))
    x = torch.randn(4, 6)
    for strategy in strategies:
        model = MappingModel(target, 10, strategy, mapper=config)
        assert torch.equal(model(x), target(x))
        model(x).square().sum().backward()
        assert all(parameter.grad is not None and parameter.grad.any() for parameter in model.parameters())
