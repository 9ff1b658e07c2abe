"""The strategy `lrd`, with core and no other plugin."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from attrs import define
from torch import nn

import mapping_core
import mapping_core.builtin
import mapping_plugin_lrd
from mapping_core import (
    BudgetError,
    ConfigError,
    Generator,
    GeneratorConfig,
    MappingModel,
    MappingTrainer,
    Registry,
)
from mapping_core.builtin.mappers import Orthogonal
from mapping_core.config import structure, unstructure
from mapping_core.contexts import GeneratorContext
from mapping_core.one_latent import OneLatent
from mapping_plugin_lrd import Lrd
from mapping_plugin_lrd._generator import LrdGenerator


def network() -> nn.Sequential:
    """A convolution, a norm, two linear layers; [N, 2, 8, 8] -> [N, 3]."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 12, 3),
        nn.GroupNorm(2, 12),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(48, 40),
        nn.ReLU(),
        nn.Linear(40, 3),
    )


def model(latent_dim: int = 30, strategy: Any = "lrd", start: float = 1.0, **options: Any) -> MappingModel:
    """Return a mapped network with a latent of this spread."""
    made = MappingModel(network(), latent_dim, strategy, **options)
    with torch.no_grad():
        made.latent.normal_(std=start, generator=torch.Generator().manual_seed(1))
    return made


def inputs() -> torch.Tensor:
    """A batch for the network."""
    return torch.randn(6, 2, 8, 8, generator=torch.Generator().manual_seed(2))


def generator(made: MappingModel) -> LrdGenerator:
    """The model's strategy at work."""
    assert isinstance(made.generator, LrdGenerator)
    return made.generator


def test_registered() -> None:
    """The plugin adds one strategy under its name, at core's version; object, name and table are one."""
    registry = Registry.discover()
    assert registry.generators.get("mapping-plugin-lrd:lrd") is Lrd
    assert mapping_plugin_lrd.__version__ == mapping_core.__version__
    registry = Registry.of(mapping_core.builtin, mapping_plugin_lrd)
    table = {"type": "lrd", "rank": {"Linear": 4, "0": 2}, "layers": ["0", "5"]}
    config = Lrd(rank={"Linear": 4, "0": 2}, layers=("0", "5"))
    assert registry.resolve(GeneratorConfig, table) == config
    assert structure(unstructure(config), Lrd, registry=registry) == config
    with pytest.raises(AttributeError, match="no attribute 'facturize'"):
        _ = mapping_plugin_lrd.facturize


@pytest.mark.parametrize(
    ("strategy", "ranks"),
    [
        (Lrd(rank=4), {"0.weight": 4, "5.weight": 4}),  # two factors of the last layer would be larger than it is
        (Lrd(rank=9), {"5.weight": 9}),
        (Lrd(rank=3, layers=("7",)), {"7.weight": 3}),
        (Lrd(rank=2, layers=("Linear",)), {"5.weight": 2, "7.weight": 2}),
        (Lrd(rank={"5": 6, "*": 2}), {"0.weight": 2, "5.weight": 6, "7.weight": 2}),
        (Lrd(rank={"5": 6, "*": 2}, layers=("5", "0.weight")), {"0.weight": 2, "5.weight": 6}),
    ],
)
def test_choice(strategy: Lrd, ranks: dict[str, int]) -> None:
    """By default what becomes smaller is decomposed; layers and ranks are chosen by pattern."""
    made = model(strategy=strategy)
    assert {name: len(v) for name, (_, v) in generator(made).pairs(made.latents).items()} == ranks
    assert sum(p.numel() for p in made.parameters()) == 30
    assert made.generator.assignment() == {"z": tuple(spec.name for spec in made.layout.mapped)}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rank": 200}, "at rank 200 no weight becomes smaller"),
        ({"rank": 4, "layers": ("7",)}, r"rank 4 is more than '7.weight', a matrix of 3 x 40.*at most 3"),
        ({"rank": {"7.weigth": 2}}, r"'7.weigth' matches no weight to decompose; did you mean '7.weight'"),
        ({"layers": ("GroupNorm",)}, "'GroupNorm' matches no weight"),
        ({"layers": ("*.bias",)}, r"'\*.bias' matches no weight"),
    ],
)
def test_wrong_choices(options: dict[str, Any], message: str) -> None:
    """A rank or a pattern that fits nothing is an error when the model is built."""
    with pytest.raises(ConfigError, match=message):
        model(strategy=Lrd(**options))


@pytest.mark.parametrize("rank", [0, -1, True, 2.0, {}, {"a": 0}])
def test_wrong_ranks(rank: Any) -> None:
    """A rank is an integer of at least 1, or a table of such."""
    with pytest.raises(ValueError, match="'rank' must be an integer of at least 1, or a table"):
        Lrd(rank=rank)


def test_budget() -> None:
    """More numbers than the factors and the whole parameters have together is refused."""
    with pytest.raises(BudgetError, match=r"does not fit the inner strategy \(one latent\), which has 1,119 numbers"):
        model(1120)


def test_weights_are_products() -> None:
    """A decomposed weight is its base plus a product of the rank; another is what the latent makes of it."""
    made = model()
    weights, base = made.generate_weights(), dict(network().named_parameters())
    for name, (u, v) in generator(made).pairs(made.latents).items():
        change = (weights[name] - base[name]).flatten(1)
        torch.testing.assert_close(change, u @ v, rtol=1e-4, atol=1e-6)
        assert torch.linalg.matrix_rank(change.double(), rtol=1e-4) == 8
    assert not torch.equal(weights["7.weight"], base["7.weight"])


@pytest.mark.parametrize("base", ["current", "seeded"])
def test_starts_as_the_base_and_learns(base: str) -> None:
    """At z = 0 the weights are the base to the bit, and still the gradient reaches the decomposed layers."""
    made = model(start=0.0, base=base)
    weights = made.generate_weights()
    assert all(torch.equal(weights[name], weight) for name, weight in made.target.base.as_dict().items())
    (gradient,) = torch.autograd.grad(weights["5.weight"].square().sum(), made.latent)
    assert gradient.norm() > 0


def test_without_a_base() -> None:
    """With base="zero" both factors are generated, the latent starts at random, and the gradient is not 0."""
    made = MappingModel(network(), 30, "lrd", base="zero")
    assert not generator(made).starts.as_dict()
    weights = made.generate_weights()
    u, v = generator(made).pairs(made.latents)["5.weight"]
    torch.testing.assert_close(weights["5.weight"], u @ v)
    made(inputs()).square().sum().backward()
    assert made.latent.grad is not None
    assert made.latent.grad.norm() > 0


@pytest.mark.parametrize("base", ["current", "zero"])
def test_initial_standard_deviation(base: str) -> None:
    """For a latent of standard deviation 1, U V has that of the layer's initialisation, at any rank."""
    for rank in (1, 16):
        layer = nn.Linear(300, 200, bias=False)
        made = MappingModel(layer, 400, Lrd(rank=rank, layers=("*",)), mapper="orthogonal", base=base)
        with torch.no_grad():
            made.latent.normal_(generator=torch.Generator().manual_seed(0))
            change = made.generate_weights()["weight"] - made.target.base.as_dict()["weight"]
        if base == "current":  # V is its draw plus what the latent adds: twice the variance
            change = change / math.sqrt(2)
        assert change.std().item() == pytest.approx(1 / math.sqrt(3 * 300), rel=0.15)


@pytest.mark.parametrize("base", ["current", "zero"])
@pytest.mark.parametrize("mapper", ["srht", Orthogonal()])
def test_gradient(base: str, mapper: Any) -> None:
    """In float64 the gradient is what finite differences say."""
    made = model(mapper=mapper, base=base, strategy=Lrd(rank=2, layers=("0", "7"))).double()
    x = inputs()[:2].double()
    assert torch.autograd.gradcheck(
        lambda z: torch.func.functional_call(made, {"latent": z}, (x,)), made.latent_vector().requires_grad_()
    )


@pytest.mark.parametrize("rows", [None, (0, 1), (3, 11), (11, 12)])
@pytest.mark.parametrize("base", ["current", "zero"])
def test_some_weights_and_rows(rows: tuple[int, int] | None, base: str) -> None:
    """Some parameters alone, or some of their rows, are those of the whole."""
    made = model(base=base)
    weights, kept = made.generate_weights(), made.target.base.as_dict()
    for names in ({"0.weight", "0.bias"}, {"5.weight"}, {"7.bias", "1.weight"}):
        cut = rows if rows is None or min(len(weights[name]) for name in names) >= rows[1] else (0, 1)
        some = made.generator.generate_some(made.latents, kept, frozenset(names), cut)
        assert set(some) == names
        for name, weight in some.items():
            torch.testing.assert_close(weight, weights[name] if cut is None else weights[name][cut[0] : cut[1]])


def test_lazy() -> None:
    """Lazy generation gives the same outputs and gradients, large layers in slices too."""
    wide = nn.Linear(1100, 1200)
    for make in (network, lambda: wide):
        x = inputs() if make is network else torch.randn(3, 1100)
        made = []
        for lazy in (False, True):
            each = MappingModel(make(), 30, Lrd(rank=4), lazy=lazy)
            with torch.no_grad():
                each.latent.copy_(torch.linspace(-1, 1, 30))
            output = each(x)
            output.square().sum().backward()
            made.append((output, each.latent.grad))
        torch.testing.assert_close(made[0][0], made[1][0])
        torch.testing.assert_close(made[0][1], made[1][1], rtol=1e-4, atol=1e-4)


def test_many_models_at_once() -> None:
    """A stack of latents gives what each gives alone; latents may have leading dimensions."""
    made = model().eval()
    vectors = [made.latent_vector(), 0.5 * made.latent_vector()]
    both = made.stack(vectors)(inputs())
    leading = made.generate_weights({"z": torch.stack(vectors)})
    for index, vector in enumerate(vectors):
        torch.testing.assert_close(both[index], made.forward_with(vector, inputs()), rtol=1e-4, atol=1e-5)
        for name, weight in made.generate_weights({"z": vector}).items():
            torch.testing.assert_close(leading[name][index], weight, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("base", ["current", "zero"])
def test_seed_file_and_export(base: str, tmp_path: Path) -> None:
    """The same seed makes the same weights, another others; file and export give the same outputs."""
    one, same, other = (model(seed=seed, base=base).generate_weights()["5.weight"] for seed in (3, 3, 4))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    made = model(strategy=Lrd(rank={"5": 3}), base=base).eval()
    made.save(tmp_path / "m")
    assert (tmp_path / "m").stat().st_size < 4 * 30 + 8192
    loaded = MappingModel.load(tmp_path / "m", network()).eval()
    assert loaded.strategy == made.strategy
    assert torch.equal(loaded(inputs()), made(inputs()))
    torch.testing.assert_close(made.export()(inputs()), made(inputs()))


def test_half_precision() -> None:
    """A model in bfloat16 generates in float32 and casts the result."""
    made = model()
    exact, rounded = made.generate_weights(), made.to(torch.bfloat16).generate_weights()
    assert {weight.dtype for weight in rounded.values()} == {torch.bfloat16}
    torch.testing.assert_close(rounded["5.weight"].float(), exact["5.weight"], rtol=0.02, atol=0.02)


def test_padding_row() -> None:
    """The padding row of a decomposed embedding keeps its value."""
    embedding = nn.Embedding(20, 12, padding_idx=3)
    made = MappingModel(embedding, 16, Lrd(rank=2))
    with torch.no_grad():
        made.latent.normal_()
    changed = made.generate_weights()["weight"] - embedding.weight
    assert torch.equal(changed[3], torch.zeros(12))
    assert (changed[[0, 1, 2, 4]].norm(dim=1) > 0).all()


def test_lrd_inside_lrd() -> None:
    """Factors may be decomposed once more, by a strategy inside the strategy."""
    made = model(20, Lrd(rank=12, layers=("5",), strategy=Lrd(rank=2, layers=("*.v",))))
    assert list(made.suppliers) == ["strategy", "strategy.strategy", "mapper"]
    assert torch.linalg.matrix_rank(generator(made).pairs(made.latents)["5.weight"][0]) == 12
    made(inputs()).sum().backward()


class Still(OneLatent):
    """Gives the base, whatever the latent is."""

    def generate_some(self, latents: Any, base: Any, names: frozenset[str], rows: Any = None) -> dict[str, Any]:
        return {name: base[name] for name in names}


@define(frozen=True, kw_only=True)
class StillConfig(GeneratorConfig):
    """Its configuration."""

    name = "still"

    def build(self, context: GeneratorContext) -> Generator:
        return Still(context)


def test_factors_must_move() -> None:
    """A strategy inside that leaves U at 0 could never learn, and is refused when the model is built."""
    with pytest.raises(ConfigError, match="'still' inside it does not move U, which starts at 0"):
        model(strategy=Lrd(strategy=StillConfig()))


def test_trains() -> None:
    """It trains by its name, in three lines."""
    x = torch.randn(48, 2, 8, 8, generator=torch.Generator().manual_seed(0))
    loader = [(x, x.mean(dim=(2, 3)).argmax(1))]
    made = MappingModel(network(), 60, "lrd")
    history = MappingTrainer(made, loader, max_epochs=25, seed=0, accelerator="cpu", progress=False).fit()
    assert history["train_loss"][-1] < 0.8 * history["train_loss"][0]
