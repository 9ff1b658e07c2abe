"""The strategy `pruned` and the function `prune`, with core and no other plugin."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from attrs import define
from torch import nn

import mapping_core
import mapping_core.builtin
import mapping_plugin_pruning
from mapping_core import (
    ConfigError,
    Generator,
    GeneratorConfig,
    MappingModel,
    NonFiniteError,
    Registry,
)
from mapping_core.config import structure, unstructure
from mapping_core.contexts import GeneratorContext
from mapping_core.reference.models import CNN2
from mapping_plugin_pruning import Pruned, Pruning, kept, prune
from mapping_plugin_pruning._bits import byte_table, packed, unpacked
from mapping_plugin_pruning._generator import PrunedGenerator


def network() -> nn.Sequential:
    """Two convolutions with a norm each, and a linear layer; [N, 4, 6, 6] -> [N, 3]."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(4, 8, 3),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 6, 3, bias=False),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(24, 3),
    )


def model(strategy: GeneratorConfig | str = "pruned", latent_dim: int = 40, **options: Any) -> MappingModel:
    """Return a mapped network whose latent is not 0."""
    made = MappingModel(network(), latent_dim, strategy, **options)
    with torch.no_grad():
        made.latent.normal_(generator=torch.Generator().manual_seed(1))
    return made


def inputs() -> torch.Tensor:
    """A batch for the network."""
    return torch.randn(5, 4, 6, 6, generator=torch.Generator().manual_seed(2))


def masks(made: MappingModel) -> dict[str, torch.Tensor]:
    """The masks by parameter."""
    assert isinstance(made.generator, PrunedGenerator)
    return {name: made.generator.mask(name) for name in made.generator.prunable}


def test_registered() -> None:
    """The plugin adds a strategy and a callback, at core's version; object, name and table are one."""
    registry = Registry.discover()
    assert registry.generators.get("mapping-plugin-pruning:pruned") is Pruned
    assert registry.callbacks.get("mapping-plugin-pruning:pruning") is Pruning
    assert mapping_plugin_pruning.__version__ == mapping_core.__version__
    registry = Registry.of(mapping_core.builtin, mapping_plugin_pruning)
    for config in (Pruned(method="n_m", m=8, layers=("0",)), Pruning(keep=0.5, schedule="iterative", rewind=0.05)):
        assert structure(unstructure(config), type(config), registry=registry) == config
    assert registry.resolve(GeneratorConfig, "pruned") == Pruned()
    with pytest.raises(AttributeError, match="no attribute 'shrunk'"):
        _ = mapping_plugin_pruning.shrunk


@pytest.mark.parametrize("count", [1, 7, 8, 9, 64, 1003])
def test_bits(count: int) -> None:
    """A mask is packed eight to a byte, and any range of it comes back."""
    mask = torch.rand(count, generator=torch.Generator().manual_seed(count)) < 0.3
    bits = packed(mask)
    assert bits.dtype == torch.uint8
    assert len(bits) == -(-count // 8)
    for start, stop in ((0, count), (count // 3, count), (count // 3, count // 2), (0, 1)):
        assert torch.equal(unpacked(bits, byte_table(), start, stop), mask[start:stop])


def test_the_paper_s_count() -> None:
    """A tenth of all that CNN2 has, biases too, is the paper's 10,862 weights; export has as many that are not 0."""
    made = MappingModel(CNN2(), 2048, "pruned")
    prune(made, 0.1)
    assert kept(made) == 10_862
    assert sum(int(weight.count_nonzero()) for weight in made.export().parameters()) == 10_862
    assert sum(parameter.numel() for parameter in made.parameters()) == 2048


@pytest.mark.parametrize("method", ["magnitude", "channels", "n_m"])
def test_all_pass_at_the_start(method: Any) -> None:
    """Before anything is pruned the model is its target, and has the weights of what is inside."""
    target = network().eval()
    made = MappingModel(target, 40, Pruned(method=method)).eval()
    assert torch.equal(made(inputs()), target(inputs()))
    assert all(mask.all() for mask in masks(made).values())


def test_global_magnitude() -> None:
    """The largest weights of all tensors together stay, as they are, and the others are 0."""
    made = model()
    before = made.generate_weights()
    prune(made, 0.25)
    after = made.generate_weights()
    names = [spec.name for spec in made.layout.mapped if not spec.starts_constant]
    assert set(masks(made)) == set(names)  # gains and biases of norms are left alone
    values = torch.cat([before[name].flatten().abs() for name in names])
    smallest = values.topk(round(0.25 * len(values))).values.min()
    for name, weight in before.items():
        expected = weight if name not in names else torch.where(weight.abs() >= smallest, weight, 0.0)
        assert torch.equal(after[name], expected)


def test_magnitude_by_tensor() -> None:
    """With scope="tensor" each tensor keeps the same part; `layers` choose what may be pruned."""
    made = model(Pruned(scope="tensor", layers=("Conv2d", "1.weight")))
    prune(made, 0.25)
    assert {name: int(mask.sum()) for name, mask in masks(made).items()} == {
        "0.weight": 72,
        "0.bias": 2,
        "1.weight": 2,
        "3.weight": 108,
    }
    total = sum(spec.numel for spec in made.layout.mapped)
    assert kept(made) == total - (288 + 8 + 8 + 432) + (72 + 2 + 2 + 108)


@pytest.mark.parametrize(("keep", "n"), [(0.5, 2), (0.25, 1), (0.6, 3), (1.0, 4)])
def test_n_of_m(keep: float, n: int) -> None:
    """Of every four weights of a row the n largest stay."""
    made = model(Pruned(method="n_m"))
    before = made.generate_weights()
    prune(made, keep)
    assert set(masks(made)) == {"0.weight", "3.weight", "7.weight"}
    for name, mask in masks(made).items():
        assert (mask.reshape(-1, 4).sum(1) == n).all()
        blocks = before[name].reshape(-1, 4).abs()
        assert (torch.where(mask.view(-1, 4), blocks, 0).sum(1) >= blocks.topk(n).values.sum(1) - 1e-6).all()


@pytest.mark.parametrize("scope", ["global", "tensor"])
def test_channels(scope: Any) -> None:
    """Channels go whole, with bias and norm; each layer keeps some, and the last one all."""
    made = model(Pruned(method="channels", scope=scope))
    prune(made, 0.5)
    found = masks(made)
    assert set(found) == {"0.weight", "0.bias", "1.weight", "1.bias", "3.weight", "4.weight", "4.bias"}
    alive = {layer: found[f"{layer}.weight"].flatten(1).any(1) for layer in ("0", "3")}
    assert all((found[f"{layer}.weight"].flatten(1).all(1) == one).all() for layer, one in alive.items())
    assert torch.equal(found["0.bias"], alive["0"])
    assert torch.equal(found["1.weight"], alive["0"])
    assert torch.equal(found["4.bias"], alive["3"])
    if scope == "tensor":
        assert [int(one.sum()) for one in alive.values()] == [4, 3]
    else:
        assert sum(int(one.sum()) for one in alive.values()) == 7
        prune(made, 0.01)
        assert [int(masks(made)[f"{layer}.weight"].flatten(1).any(1).sum()) for layer in ("0", "3")] == [1, 1]


def test_channels_of_the_smallest_norm_go() -> None:
    """Within a layer those of the largest norm stay."""
    made = model(Pruned(method="channels", scope="tensor"))
    norms = made.generate_weights()["0.weight"].flatten(1).norm(dim=1)
    prune(made, 0.25)
    assert set(masks(made)["0.bias"].nonzero().flatten().tolist()) == set(norms.topk(2).indices.tolist())


@pytest.mark.parametrize("method", ["magnitude", "channels", "n_m"])
@pytest.mark.parametrize("scope", ["global", "tensor"])
def test_what_is_pruned_stays_pruned(method: Any, scope: Any) -> None:
    """Masks only lose bits, whatever the latent does in between, and a larger part changes nothing."""
    made = model(Pruned(method=method, scope=scope))
    before = masks(made)
    for keep in (0.8, 0.5, 0.25, 0.6):
        with torch.no_grad():
            made.latent.normal_()
        prune(made, keep)
        now = masks(made)
        assert all((before[name] | ~now[name]).all() for name in now)
        before = now
    number = kept(made)
    prune(made, 0.9)
    assert kept(made) == number


def test_gradient() -> None:
    """In float64 the gradient is what finite differences say, and comes through what passes alone."""
    made = model(mapper="orthogonal").double().eval()
    prune(made, 0.3)
    x = inputs()[:2].double()
    assert torch.autograd.gradcheck(
        lambda z: torch.func.functional_call(made, {"latent": z}, (x,)), made.latent_vector().requires_grad_()
    )


@pytest.mark.parametrize("rows", [None, (0, 1), (1, 3)])
def test_some_weights_and_rows(rows: tuple[int, int] | None) -> None:
    """Some parameters alone, or some of their rows, are those of the whole."""
    made = model()
    prune(made, 0.4)
    weights = made.generate_weights()
    for names in ({"0.weight", "0.bias"}, {"7.weight", "1.weight"}, {"3.weight"}):
        some = made.generator.generate_some(made.latents, made.target.base.as_dict(), frozenset(names), rows)
        assert set(some) == names
        for name, weight in some.items():
            torch.testing.assert_close(weight, weights[name] if rows is None else weights[name][rows[0] : rows[1]])


def test_lazy_compiled_and_many() -> None:
    """Lazy generation, the compiled model and stacks give what the model gives."""
    made = model().eval()
    prune(made, 0.3)
    lazy = model(lazy=True).eval()
    lazy.load_state_dict(made.state_dict())
    x = inputs()
    torch.testing.assert_close(lazy(x), made(x))
    lazy(x).square().sum().backward()
    made(x).square().sum().backward()
    torch.testing.assert_close(lazy.latent.grad, made.latent.grad, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(torch.compile(made, backend="aot_eager", fullgraph=True)(x), made(x))
    vectors = [made.latent_vector(), 0.5 * made.latent_vector()]
    both = made.stack(vectors)(x)
    for index, vector in enumerate(vectors):
        torch.testing.assert_close(both[index], made.forward_with(vector, x), rtol=1e-4, atol=1e-5)


def test_file_holds_bits(tmp_path: Path) -> None:
    """Masks are in the state and the file, a bit a weight, and come back; weights kept in evaluation follow them."""
    made = model().eval()
    x = inputs()
    with torch.no_grad():
        before = made(x)
        prune(made, 0.2)
        after = made(x)
    assert not torch.equal(before, after)
    made.save(tmp_path / "m")
    stored = safetensors.torch.load_file(tmp_path / "m")
    bits = {key: tensor for key, tensor in stored.items() if key.startswith("generator.masks.")}
    assert {tensor.dtype for tensor in bits.values()} == {torch.uint8}
    assert sum(tensor.numel() for tensor in bits.values()) == sum(-(-m.numel() // 8) for m in masks(made).values())
    loaded = MappingModel.load(tmp_path / "m", network()).eval()
    assert kept(loaded) == kept(made)
    with torch.no_grad():
        assert torch.equal(loaded(x), after)
    exported = made.export()
    torch.testing.assert_close(exported(x), after)
    assert sum(int(weight.count_nonzero()) for weight in exported.parameters()) <= kept(made)


def test_half_precision() -> None:
    """A model in bfloat16 is pruned in float32, and its zeros are zeros."""
    made = model().to(torch.bfloat16)
    prune(made, 0.2)
    weights = made.generate_weights()
    assert weights["3.weight"].dtype == torch.bfloat16
    assert (weights["3.weight"][~masks(made)["3.weight"]] == 0).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layers": ("5",)}, "'5' matches no parameter"),
        ({"layers": ("3.wieght",)}, "did you mean '3.weight'"),
        ({"method": "channels", "layers": ("BatchNorm2d",)}, "'BatchNorm2d' matches no layer with channels"),
        ({"method": "n_m", "m": 5, "layers": ("0",)}, r"the rows of '0.weight' have 36 weights, no multiple of m=5"),
        ({"method": "n_m", "m": 1000}, "nothing can be pruned by method 'n_m' here"),
        ({"strategy": Pruned()}, "'pruned' inside 'pruned'"),
    ],
)
def test_wrong_choices(options: dict[str, Any], message: str) -> None:
    """What fits nothing, or makes no sense, is refused when the model is built."""
    with pytest.raises(ConfigError, match=message):
        model(Pruned(**options))


@pytest.mark.parametrize("options", [{"method": "random"}, {"scope": "layer"}, {"m": 1}, {"layers": "0"}])
def test_wrong_values(options: dict[str, Any]) -> None:
    """Values out of range are errors of the configuration itself."""
    with pytest.raises((ValueError, TypeError), match=next(iter(options))):
        Pruned(**options)


def test_one_layer_has_no_channels_to_prune() -> None:
    """The last layer's channels are outputs, unless it is named."""
    with pytest.raises(ConfigError, match="nothing can be pruned by method 'channels' here"):
        MappingModel(nn.Linear(4, 4), 5, Pruned(method="channels"))
    made = MappingModel(nn.Linear(4, 4), 5, Pruned(method="channels", layers=("*",)))
    prune(made, 0.5)
    assert kept(made) == 10


def test_wrong_calls() -> None:
    """A part out of range, another strategy, another kind of model and weights that are not finite are refused."""
    made = model()
    for keep in (0, 1.5, -0.1):
        with pytest.raises(ConfigError, match=r"keep: must be in \(0, 1\]"):
            prune(made, keep)
    with pytest.raises(ConfigError, match="needs the strategy 'pruned' of a MappingModel"):
        prune(network(), 0.5)

    @define(frozen=True, kw_only=True)
    class Plain(GeneratorConfig):
        name = "plain"

        def build(self, context: GeneratorContext) -> Generator:
            return context.inner(None, layout=context.layout, latent_dim=context.latent_dim)

    with pytest.raises(ConfigError, match=r"needs the strategy 'pruned', it is 'plain'"):
        prune(MappingModel(network(), 20, Plain()), 0.5)
    with torch.no_grad():
        made.latent.fill_(float("nan"))
    with pytest.raises(NonFiniteError, match=r"'0\.weight' has weights that are not finite"):
        prune(made, 0.5)
    assert all(mask.all() for mask in masks(made).values())
