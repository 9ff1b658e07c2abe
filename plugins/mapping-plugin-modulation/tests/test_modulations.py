"""The five modulations, with core and no other plugin."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from attrs import define
from torch import Tensor, nn

import mapping_core
import mapping_core.builtin
import mapping_plugin_modulation
from mapping_core import Expansion, Generator, GeneratorConfig, MappingModel, ModulationConfig, Registry
from mapping_core.builtin.mappers import Orthogonal
from mapping_core.contexts import GeneratorContext, ModulationContext
from mapping_plugin_modulation import Additive, Affine, BlockScale, Finetune, Gain, LowRank
from mapping_plugin_modulation._numbers import FollowingNumbers

KINDS: list[ModulationConfig] = [
    Additive(alpha=0.02),
    Affine(),
    LowRank(rank=2),
    Gain(),
    Gain(groups=3, strength=0.5),
    BlockScale(),
    BlockScale(depth=1),
]


class Net(nn.Module):
    """Convolutions in two blocks, a norm, a scalar and a head; [N, 2, 5, 5] -> [N, 3]."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem = nn.Sequential(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4))
        self.body = nn.Sequential(nn.Conv2d(4, 6, 3), nn.ReLU())
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.body(self.stem(x)).flatten(1)) * self.scale
        return logits


def mapped(modulation: Any, latent_dim: int = 12, *, target: nn.Module | None = None, **options: Any) -> MappingModel:
    """Return a model of one latent with a modulation."""
    options = {"strategy": Finetune(kind="deltas"), **options}
    return MappingModel(Net() if target is None else target, latent_dim, modulation=modulation, **options)


def moved(model: MappingModel, seed: int = 1) -> MappingModel:
    """Put the latent somewhere."""
    with torch.no_grad():
        model.latent.normal_(generator=torch.Generator().manual_seed(seed))
    return model


@pytest.fixture(params=KINDS, ids=repr)
def modulation(request: pytest.FixtureRequest) -> ModulationConfig:
    """Give each kind in turn."""
    made: ModulationConfig = request.param
    return made


def test_registered() -> None:
    """The plugin adds its modulations and its strategy through its entry point, at core's version."""
    registry = Registry.discover()
    for name in ("additive", "affine", "low_rank", "gain", "block_scale"):
        found = registry.modulations.get(f"mapping-plugin-modulation:{name}")
        assert registry.resolve(ModulationConfig, name) == found()
    assert registry.generators.get("mapping-plugin-modulation:finetune") is Finetune
    assert mapping_plugin_modulation.__version__ == mapping_core.__version__


def test_starts_as_the_target(modulation: ModulationConfig) -> None:
    """At z = 0 every weight is the base, bit for bit, and the gradient reaches every number of the latent."""
    target = Net()
    model = mapped(modulation, target=target)
    x = torch.randn(4, 2, 5, 5)
    assert torch.equal(model(x), target(x))
    model(x).square().sum().backward()
    assert model.latent.grad is not None
    assert bool((model.latent.grad != 0).all())


def test_same_seed_same_weights(modulation: ModulationConfig) -> None:
    """The seed decides: the same one gives the same weights, another one others."""
    one, again, other = (moved(mapped(modulation, seed=seed)).generate_weights() for seed in (3, 3, 4))
    assert all(torch.equal(one[name], again[name]) for name in one)
    assert not torch.equal(one["body.0.weight"], other["body.0.weight"])


def test_many_latents_at_once(modulation: ModulationConfig) -> None:
    """Leading dimensions of the latent go through, by hand and under vmap."""
    model = moved(mapped(modulation))
    stacked = torch.randn(2, 3, 12)
    together = model.generate_weights({"z": stacked})
    mapped_over = torch.func.vmap(torch.func.vmap(lambda z: model.generate_weights({"z": z})))(stacked)
    for i, j in ((0, 0), (1, 2)):
        alone = model.generate_weights({"z": stacked[i, j]})
        for name, weight in alone.items():
            torch.testing.assert_close(together[name][i, j], weight)
            torch.testing.assert_close(mapped_over[name][i, j], weight)


def test_lazy_generation(modulation: ModulationConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer run a few rows at a time gives the output and the gradient of the whole."""
    monkeypatch.setattr("mapping_core.target.slices.SLICE", 60)
    x = torch.randn(3, 2, 5, 5)
    results = []
    for lazy in (False, True):
        model = moved(mapped(modulation, lazy=lazy))
        output = model(x)
        output.square().sum().backward()
        results.append((output.detach(), model.latent.grad))
    torch.testing.assert_close(results[1], results[0])


def test_low_precision_base(modulation: ModulationConfig) -> None:
    """A bfloat16 target gets bfloat16 weights, computed in float32."""
    model = moved(mapped(modulation, target=Net().bfloat16()))
    reference = moved(mapped(modulation, target=Net().bfloat16().float()))
    exact = reference.generate_weights()
    for name, weight in model.generate_weights().items():
        assert weight.dtype == torch.bfloat16
        torch.testing.assert_close(weight, exact[name].bfloat16(), rtol=0.02, atol=1e-3)
    assert torch.isfinite(copy.deepcopy(model)(torch.randn(2, 2, 5, 5).bfloat16())).all()


def test_saves_and_loads(modulation: ModulationConfig, tmp_path: Any) -> None:
    """A file gives the same outputs back, with the modulation's settings."""
    target = Net()
    model = moved(mapped(modulation, target=target))
    model.save(tmp_path / "model.safetensors")
    loaded = MappingModel.load(tmp_path / "model.safetensors", target)
    assert loaded.modulation == modulation
    x = torch.randn(2, 2, 5, 5)
    assert torch.equal(loaded(x), model(x))
    assert torch.equal(loaded.export()(x), model(x))


def test_additive_is_the_literal_formula() -> None:
    """The closed form equals what the paper writes: alpha z added to every row of the mapper's matrix."""
    alpha = 0.02
    model = moved(mapped(Additive(alpha=alpha), mapper=Orthogonal())).double()
    generator: Any = model.generator
    mapper = generator.expansion.mapper
    z = model.latent.detach()
    matrix = torch.func.jacrev(mapper)(torch.zeros_like(z))
    literal = (matrix + alpha * torch.ones(len(matrix), 1, dtype=z.dtype) * z) @ z
    weights = model.generate_weights()
    start = 0
    for spec in model.layout.mapped:
        piece = literal[start : start + spec.numel].view(spec.shape)
        expected = model.target.base.as_dict()[spec.name] + spec.scale * piece
        torch.testing.assert_close(weights[spec.name], expected, rtol=0, atol=1e-12)
        start += spec.numel


def test_gain_is_one_factor_a_channel() -> None:
    """With the mapper's part taken out, a channel's weights are the base's times one number."""
    model = moved(mapped(Gain(strength=0.3)))
    base, weights = model.target.base.as_dict(), model.generate_weights()
    plain = moved(mapped(None)).generate_weights()
    for name in ("stem.0.weight", "head.weight"):
        factor = (weights[name] / plain[name]).flatten(1)
        torch.testing.assert_close(factor, factor[:, :1].expand_as(factor), rtol=1e-3, atol=1e-4)
        assert torch.unique(factor[:, 0]).numel() == len(base[name])


def test_gain_groups_share_numbers() -> None:
    """With three groups there are three factors, up to sign."""
    groups = 3
    model = moved(mapped(Gain(groups=groups, strength=0.3)))
    plain = moved(mapped(None)).generate_weights()
    weights = model.generate_weights()
    factors = torch.cat([(weights[n] / plain[n]).flatten(1)[:, 0] for n in ("stem.0.weight", "body.0.weight")])
    assert torch.unique(((factors - 1).abs() * 1e3).round()).numel() == groups


def test_block_scale_is_one_factor_a_block() -> None:
    """With depth 1, the two modules of a block share a factor, and another block has another."""
    weights = moved(mapped(BlockScale(depth=1, strength=0.3))).generate_weights()
    plain = moved(mapped(None)).generate_weights()
    means = {name: float((weights[name] / plain[name]).mean()) for name in weights}
    assert means["stem.0.weight"] == pytest.approx(means["stem.1.weight"], abs=1e-4)
    assert means["stem.0.weight"] != pytest.approx(means["body.0.weight"], abs=1e-3)


def test_low_rank_has_its_rank() -> None:
    """What it adds to a matrix has the rank asked for, the layer's scale, and leaves vectors alone."""
    target = nn.Sequential(nn.Linear(40, 30), nn.LayerNorm(30))
    changed = moved(mapped(LowRank(rank=3), 64, target=target)).generate_weights()
    plain = moved(mapped(None, 64, target=target)).generate_weights()
    added = (changed["0.weight"] - plain["0.weight"]).double()
    assert int(torch.linalg.matrix_rank(added, atol=1e-4)) == 3
    assert 0.3 < float(added.std()) * (3 * 40) ** 0.5 < 3
    assert torch.equal(changed["1.weight"], plain["1.weight"])


def test_low_rank_without_a_matrix() -> None:
    """A target of vectors alone is left to the mapper."""
    target = nn.Sequential(nn.LayerNorm(6), nn.LayerNorm(6))
    changed, plain = (moved(mapped(each, 8, target=target)).generate_weights() for each in (LowRank(), None))
    assert all(torch.equal(changed[name], plain[name]) for name in plain)


@pytest.mark.parametrize(("d", "count", "groups"), [(8, 20, None), (8, 20, 3), (20, 8, None), (7, 3, 2), (1, 5, None)])
def test_following_numbers_have_unit_gain(d: int, count: int, groups: int | None) -> None:
    """Each result is a signed sum of norm 1 of the latent's numbers, and all of these are used."""
    context = ModulationContext(in_features=d, parameters=(), seed=5)
    numbers = FollowingNumbers(context, count, purpose=1, groups=groups)
    matrix = torch.func.jacrev(numbers)(torch.zeros(d, dtype=torch.float64))
    torch.testing.assert_close(matrix.norm(dim=1), torch.ones(count, dtype=torch.float64))
    assert bool((matrix.abs().sum(0) > 0).all())
    assert len({tuple(row.abs().tolist()) for row in matrix}) == min(d, count, groups or count)


@define(frozen=True, kw_only=True)
class PerLayer(GeneratorConfig):
    """One expansion a layer, as third parties write strategies."""

    name = "per_layer"

    def build(self, context: GeneratorContext) -> Generator:
        layers = context.layout.layers()

        class Layers(Generator):
            def __init__(self) -> None:
                super().__init__()
                shares = [4] * (len(layers) - 1) + [context.latent_dim - 4 * (len(layers) - 1)]
                self.parts = nn.ModuleList(
                    context.expansion(specs, share, stream=i)
                    for i, (specs, share) in enumerate(zip(layers.values(), shares, strict=True))
                )

            @property
            def latent_sizes(self) -> dict[str, int]:
                return {str(i): part.latent_size for i, part in self._numbered()}

            def _numbered(self) -> list[tuple[int, Expansion]]:
                return list(enumerate(self.parts))  # type: ignore[arg-type]

            def forward(self, latents: Mapping[str, Tensor], base: Mapping[str, Tensor]) -> dict[str, Tensor]:
                made: dict[str, Tensor] = {}
                for i, part in self._numbered():
                    made |= part(latents[str(i)], base)
                return made

            def assignment(self) -> dict[str, tuple[str, ...]]:
                return {str(i): part.names for i, part in self._numbered()}

        return Layers()


def test_with_a_latent_a_layer(modulation: ModulationConfig) -> None:
    """A modulation serves each expansion of a strategy that has several."""
    registry = Registry.of(mapping_core.builtin, mapping_plugin_modulation)
    target = Net()
    model = MappingModel(target, 24, PerLayer(), modulation=modulation, registry=registry)
    x = torch.randn(2, 2, 5, 5)
    assert torch.equal(model(x), target(x))
    moved(model)(x).square().sum().backward()
    assert model.latent.grad is not None
    assert torch.isfinite(model.latent.grad).all()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Gain(groups=0), "groups"),
        (lambda: Gain(strength=0.0), "strength"),
        (lambda: LowRank(rank=0), "rank"),
        (lambda: BlockScale(depth=0), "depth"),
    ],
)
def test_bad_settings(make: Any, message: str) -> None:
    """A setting out of range is refused when it is made, by name."""
    with pytest.raises(ValueError, match=message):
        make()
