"""The strategy `quantized` and the function `quantize`, with core and no other plugin."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import safetensors
import safetensors.torch
import torch
from attrs import define
from torch import Tensor, nn

import mapping_core
import mapping_core.builtin
import mapping_plugin_quantize
from mapping_core import (
    BudgetError,
    ConfigError,
    Expansion,
    FileFormatError,
    Generator,
    GeneratorConfig,
    MappingModel,
    Registry,
)
from mapping_core.config import structure, unstructure
from mapping_core.contexts import GeneratorContext
from mapping_plugin_quantize import Quantized, Quantizing, quantize
from mapping_plugin_quantize._generator import STEPS, QuantizedGenerator


@define(frozen=True, kw_only=True)
class Halves(GeneratorConfig):
    """Two latents, named ``first`` and ``last``, for the parameters of the first layer and of the rest."""

    name = "halves"

    def build(self, context: GeneratorContext) -> Generator:
        return HalvesGenerator(context)


class HalvesGenerator(Generator):
    def __init__(self, context: GeneratorContext) -> None:
        super().__init__()
        specs = context.layout.mapped
        count = context.latent_dim // 2
        self.first = context.expansion(specs[:2], count, stream=0)
        self.last = context.expansion(specs[2:], context.latent_dim - count, stream=1)

    @property
    def latent_sizes(self) -> dict[str, int]:
        return {name: part.latent_size for name, part in self._parts.items()}

    @property
    def _parts(self) -> dict[str, Expansion]:
        return {"first": self.first, "last": self.last}

    def forward(self, latents: Any, base: Any) -> dict[str, Tensor]:
        made = {name: part(latents[name], base) for name, part in self._parts.items()}
        return {**made["first"], **made["last"]}

    def assignment(self) -> dict[str, tuple[str, ...]]:
        return {name: part.names for name, part in self._parts.items()}


def network() -> nn.Sequential:
    """Two linear layers; [N, 6] -> [N, 3]."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))


def model(strategy: GeneratorConfig | str = "quantized", latent_dim: int = 60, **options: Any) -> MappingModel:
    """Return a mapped network whose latent is not 0."""
    made = MappingModel(network(), latent_dim, strategy, **options)
    with torch.no_grad():
        made.latent[: latent_dim - 2].normal_(generator=torch.Generator().manual_seed(1))
    return made


def inputs() -> Tensor:
    """A batch for the network."""
    return torch.randn(5, 6, generator=torch.Generator().manual_seed(2))


def used(made: MappingModel) -> dict[str, Tensor]:
    """The latents that the inner strategy gets."""
    assert isinstance(made.generator, QuantizedGenerator)
    with torch.no_grad():
        return made.generator._quantized(made.latents)


def same_weights(one: MappingModel, other: MappingModel) -> bool:
    """Whether two models generate the same bits."""
    weights = one.generate_weights()
    return all(torch.equal(weight, weights[name]) for name, weight in other.generate_weights().items())


def test_registered() -> None:
    """The plugin adds a strategy and a callback, at core's version; object, name and table are one."""
    registry = Registry.discover()
    assert registry.generators.get("mapping-plugin-quantize:quantized") is Quantized
    assert registry.callbacks.get("mapping-plugin-quantize:quantize") is Quantizing
    assert mapping_plugin_quantize.__version__ == mapping_core.__version__
    registry = Registry.of(mapping_core.builtin, mapping_plugin_quantize)
    for config in (Quantized(bits={"a": 3, "*": 8}), Quantized(groups="all", bits=1), Quantizing(begin=0.1, end=0.5)):
        assert structure(unstructure(config), type(config), registry=registry) == config
    assert registry.resolve(GeneratorConfig, "quantized") == Quantized()
    with pytest.raises(AttributeError, match="no attribute 'quantise'"):
        _ = mapping_plugin_quantize.quantise


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bits": 0}, "'bits' must be an integer from 1 to 8"),
        ({"bits": 9}, "'bits' must be an integer from 1 to 8"),
        ({"bits": True}, "'bits' must be an integer from 1 to 8"),
        ({"bits": {}}, "'bits' must be an integer from 1 to 8"),
        ({"bits": {"*": 2.5}}, "'bits' must be an integer from 1 to 8"),
        ({"groups": "layer"}, "groups"),
        ({"bits": {"*": 2}, "groups": "all"}, "a table of 'bits' is by latent"),
    ],
)
def test_wrong_values(options: dict[str, Any], message: str) -> None:
    """Values out of range are errors of the configuration."""
    with pytest.raises(ValueError, match=message):
        Quantized(**options)


def test_nothing_before_it_begins() -> None:
    """A model starts as its target, and until there is a grid it has the inner strategy's weights, to the bit."""
    target = network().eval()
    fresh = MappingModel(target, 60, "quantized").eval()
    assert torch.equal(fresh(inputs()), target(inputs()))
    quantised, plain = model(), model(Halves(), 59)
    one = model(Quantized(strategy=Halves(), groups="all"))
    with torch.no_grad():
        plain.latent.copy_(one.latent[:-1])
    assert same_weights(one, plain)
    one(inputs()).sum().backward()
    assert one.latent.grad is not None
    assert one.latent.grad[:-1].all()
    assert one.latent.grad[-1] == 0  # a step that does not exist yet
    assert quantised.latents.keys() == {"z", STEPS}


@pytest.mark.parametrize("bits", range(1, 9))
def test_levels(bits: int) -> None:
    """What the inner strategy gets lies on 2^bits levels at most, and comes nearer with each bit."""
    made = model(Quantized(bits=bits))
    quantize(made)
    values = torch.unique(used(made)["z"])
    assert 2 <= len(values) <= 2**bits
    error = (used(made)["z"] - made.latents["z"]).norm() / made.latents["z"].norm()
    assert 0.4 * 0.5**bits < error < 1.6 * 0.5**bits


def test_groups_and_bits_by_latent() -> None:
    """Each latent has a step, counted in the budget, and its bits; with groups="all" there is one step."""
    made = model(Quantized(strategy=Halves(), bits={"fi*": 2, "*": 8}))
    assert {name: latent.numel() for name, latent in made.latents.items()} == {"first": 29, "last": 29, STEPS: 2}
    assert sum(parameter.numel() for parameter in made.parameters()) == 60
    quantize(made)
    values = used(made)
    assert len(torch.unique(values["first"])) <= 4 < len(torch.unique(values["last"]))
    one = model(Quantized(strategy=Halves(), groups="all"))
    assert one.latents[STEPS].numel() == 1
    quantize(one, bits=3)
    assert len(torch.unique(torch.cat(list(used(one).values())))) <= 8


def test_again_with_other_bits() -> None:
    """The latents themselves are not rounded, so that they can be quantised anew; kept weights follow."""
    made = model().eval()
    before = made.latent_vector()
    with torch.no_grad():
        outputs = []
        for bits in (2, 8, 2):
            quantize(made, bits=bits)
            outputs.append(made(inputs()))
    assert torch.equal(made.latent_vector(), before)
    assert torch.equal(outputs[0], outputs[2])
    assert not torch.equal(outputs[0], outputs[1])


@pytest.mark.parametrize("bits", [1, 2, 3, 5, 8, {"first": 1, "last": 6}])
def test_file(bits: int | dict[str, int], tmp_path: Path) -> None:
    """A file holds codes in the latents' place, and gives the same weights to the bit, again and again."""
    made = model(Quantized(strategy=Halves(), bits=bits), registry=Registry.discover())
    quantize(made)
    with torch.no_grad():
        made.latents[STEPS].add_(torch.tensor([3.0, -5.0]))  # as if they had trained
    made.save(tmp_path / "m")
    names = set(safetensors.torch.load_file(tmp_path / "m"))
    assert names == {"generator.grid", "packed.codes", "packed.steps"}
    registry = Registry.of(mapping_core.builtin, mapping_plugin_quantize, _Supplies())
    loaded = MappingModel.load(tmp_path / "m", network(), registry=registry)
    assert same_weights(loaded, made)
    assert torch.equal(loaded.latents[STEPS], made.latents[STEPS])
    loaded.save(tmp_path / "n")
    twice = MappingModel.load(tmp_path / "n", network(), registry=registry)
    assert same_weights(twice, made)
    assert torch.equal(loaded.export()(inputs()), made.export()(inputs()))


class _Supplies:
    """A plugin that is registered by hand."""

    @mapping_core.hookimpl
    def mapping_generators(self) -> list[type[GeneratorConfig]]:
        return [Halves]


def test_before_it_begins_the_file_holds_the_latent(tmp_path: Path) -> None:
    """Without a grid there is nothing to pack."""
    made = model()
    made.save(tmp_path / "m")
    assert torch.equal(safetensors.torch.load_file(tmp_path / "m")["latent"], made.latent)
    assert same_weights(MappingModel.load(tmp_path / "m", network()), made)


def test_bytes() -> None:
    """The file's size on the disk is known beforehand: some hundred bytes, and for 4 bits about 3 a number."""
    target = nn.Linear(200, 200)
    made = MappingModel(target, 8001, Quantized(bits=4))
    with torch.no_grad():
        made.latent[:-1].normal_(generator=torch.Generator().manual_seed(0))
    assert made.file_bytes() > 4 * 8001
    quantize(made)
    assert made.file_bytes() < 8000 * 3.7 / 8 + 1000
    assert f"file {made.file_bytes():,} bytes" in made.summary()


@pytest.mark.parametrize("name", ["packed.codes", "packed.steps", "packed.other"])
def test_damaged_files(name: str, tmp_path: Path) -> None:
    """Codes that are not as they were written are an error that says which file."""
    made = model()
    quantize(made)
    made.save(tmp_path / "m")
    with safetensors.safe_open(tmp_path / "m", framework="pt") as opened:
        metadata = opened.metadata()
        tensors = {key: opened.get_tensor(key) for key in opened.keys()}  # noqa: SIM118
    assert json.loads(metadata["mapping_core"])["format"] == 3
    tensors[name] = tensors[name][:-1].clone() if name in tensors else torch.zeros(1)
    safetensors.torch.save_file(tensors, tmp_path / "m", metadata=metadata)
    with pytest.raises(FileFormatError, match="m: is damaged, its tensors are not those of its recipe"):
        MappingModel.load(tmp_path / "m", network())


def test_many_latents_at_once() -> None:
    """Vectors that are run together give what each gives alone, and tangents pass straight through."""
    made = model().eval()
    quantize(made)
    vectors = [made.latent_vector(), made.latent_vector() * 0.7]
    together = made.stack(vectors)(inputs())
    for vector, output in zip(vectors, together, strict=True):
        torch.testing.assert_close(made.forward_with(vector, inputs()), output)
    tangent = torch.ones(60)
    moved = torch.func.jvp(lambda vector: made.forward_with(vector, inputs()), (vectors[0],), (tangent,))[1]
    vector = vectors[0].clone().requires_grad_()
    made.forward_with(vector, inputs()).sum().backward()
    assert vector.grad is not None
    torch.testing.assert_close(moved.sum(), vector.grad.sum())


def test_compiled_lazy_and_exported() -> None:
    """A compiled graph, lazy generation and the exported module compute the same as the plain model."""
    made = model()
    quantize(made)
    expected = made(inputs())
    compiled = torch.compile(made, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(inputs()), expected)
    torch.testing.assert_close(made.export()(inputs()), expected)
    lazy = model(lazy=True)
    quantize(lazy)
    output = lazy(inputs())
    torch.testing.assert_close(output, expected)
    output.sum().backward()
    expected.sum().backward()
    torch.testing.assert_close(lazy.latent.grad, made.latent.grad)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_dtypes(dtype: torch.dtype, tmp_path: Path) -> None:
    """A converted model has the grid of its converted steps, and its file has its codes."""
    made = model(Quantized(bits=3))
    quantize(made)
    made = made.to(dtype)
    assert len(torch.unique(used(made)["z"])) <= 8
    made.save(tmp_path / "m")
    loaded = MappingModel.load(tmp_path / "m", network())
    torch.testing.assert_close(used(loaded)["z"].double(), used(made)["z"].double(), rtol=1e-6, atol=1e-6)


def test_refusals() -> None:
    """Nested twice, without room for its steps, patterns that match nothing, other strategies, wrong bits."""
    with pytest.raises(ConfigError, match="'quantized' inside 'quantized'"):
        model(Quantized(strategy=Quantized()))
    with pytest.raises(BudgetError, match="latent_dim=1 leaves nothing beside 1 steps"):
        MappingModel(network(), 1, "quantized")
    with pytest.raises(ConfigError, match="no pattern of bits matches the latent 'last'"):
        model(Quantized(strategy=Halves(), bits={"first": 3}))
    with pytest.raises(ConfigError, match="'firs' matches no latent of 'first', 'last'"):
        model(Quantized(strategy=Halves(), bits={"firs": 3, "*": 4}))
    with pytest.raises(ConfigError, match="needs the strategy 'quantized', it is 'halves'"):
        quantize(model(Halves()))
    with pytest.raises(ConfigError, match="needs the strategy 'quantized' of a MappingModel"):
        quantize(network())
    with pytest.raises(ConfigError, match="bits: must be an integer from 1 to 8, got 9"):
        quantize(model(), bits=9)


def test_a_latent_of_zeros() -> None:
    """A latent that never moved stays 0, under whatever step."""
    made = MappingModel(network(), 60, Quantized(bits=3))
    quantize(made)
    assert not used(made)["z"].any()
    assert same_weights(made, MappingModel(network(), 60, Quantized()))


class Growing(HalvesGenerator):
    """A strategy with fewer latents the fewer numbers there are."""

    def __init__(self, context: GeneratorContext) -> None:
        super().__init__(context)
        if context.latent_dim < 59:
            self.first, self.last = self.last, context.expansion(context.layout.mapped, context.latent_dim, stream=0)

    @property
    def _parts(self) -> dict[str, Expansion]:
        return {"last": self.last} if self.last.latent_size < 59 and len(self.last.names) > 2 else super()._parts


def test_a_strategy_whose_latents_depend_on_the_budget() -> None:
    """Where steps for the latents would change which latents there are, nothing fits, and that is said."""

    @define(frozen=True, kw_only=True)
    class Odd(GeneratorConfig):
        name = "odd"

        def build(self, context: GeneratorContext) -> Generator:
            return Growing(context)

    with pytest.raises(BudgetError, match="use groups='all'"):
        MappingModel(network(), 60, Quantized(strategy=Odd()))
