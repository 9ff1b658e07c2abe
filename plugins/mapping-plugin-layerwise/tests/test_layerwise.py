"""The strategy `layerwise`, with core and no other plugin."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import mapping_core
import mapping_core.builtin
import mapping_plugin_layerwise
from mapping_core import BudgetError, GeneratorConfig, MapperConfig, MappingModel, MappingTrainer, Registry
from mapping_plugin_layerwise import Layerwise

LAYERS = {"0": ("0.weight", "0.bias"), "1": ("1.weight", "1.bias"), "2.inner": ("2.inner.weight",)}


def network() -> nn.Sequential:
    """Three layers, 63 + 18 + 27 weights, one of them nested."""
    torch.manual_seed(0)
    block = nn.Sequential()
    block.add_module("inner", nn.Linear(9, 3, bias=False))
    return nn.Sequential(nn.Linear(6, 9), nn.LayerNorm(9), block)


def model(latent_dim: int = 20, mapper: MapperConfig | str = "srht", seed: int = 0) -> MappingModel:
    """Return a mapped network whose latent is not 0."""
    made = MappingModel(network(), latent_dim, "layerwise", mapper=mapper, seed=seed)
    with torch.no_grad():
        made.latent.normal_(generator=torch.Generator().manual_seed(1))
    return made


def test_registered() -> None:
    """The plugin adds one strategy under its name, through its entry point, at core's version."""
    registry = Registry.discover()
    assert registry.generators.get("mapping-plugin-layerwise:layerwise") is Layerwise
    assert registry.supplier(Layerwise()) == f"mapping-plugin-layerwise {mapping_plugin_layerwise.__version__}"
    assert mapping_plugin_layerwise.__version__ == mapping_core.__version__


def test_spellings_and_default() -> None:
    """Object, name and table are one component, and it is the default strategy."""
    registry = Registry.of(mapping_core.builtin, mapping_plugin_layerwise)
    for given in (Layerwise(), "layerwise", {"type": "layerwise"}):
        assert registry.resolve(GeneratorConfig, given) == Layerwise()
    assert MappingModel(network(), 20, registry=registry).strategy == Layerwise()


@pytest.mark.parametrize(
    ("latent_dim", "shares"), [(3, [1, 1, 1]), (20, [7, 6, 7]), (60, [21, 18, 21]), (108, [63, 18, 27])]
)
def test_a_latent_a_layer(latent_dim: int, shares: list[int]) -> None:
    """Each layer has a latent of its own, named after it; together they are the budget."""
    made = model(latent_dim)
    assert {name: z.numel() for name, z in made.latents.items()} == dict(zip(LAYERS, shares, strict=True))
    assert made.generator.assignment() == LAYERS
    assert sum(p.numel() for p in made.parameters()) == latent_dim


def test_fewer_numbers_than_layers() -> None:
    """A budget that cannot give every layer a number is refused with both numbers and the way out."""
    with pytest.raises(BudgetError, match=r"latent_dim=2 is less than the target's 3 layers.*strategy='slvt'"):
        model(2)


def test_layers_are_independent() -> None:
    """A layer's latent moves its own parameters and no other's."""
    made = model()
    before = made.generate_weights()
    for layer, own in LAYERS.items():
        latents = {name: z + (name == layer) for name, z in made.latents.items()}
        after = made.generate_weights(latents)
        assert {name for name in before if not torch.equal(before[name], after[name])} == set(own)


def test_layers_have_mappings_of_their_own() -> None:
    """Two layers of one shape and one latent get unrelated changes."""
    torch.manual_seed(0)
    twins = MappingModel(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)), 16, "layerwise")
    z = torch.randn(8)
    weights = twins.generate_weights({"0": z, "1": z})
    change = {name: weights[name] - base for name, base in twins.export().named_parameters()}
    one, two = change["0.weight"].flatten(), change["1.weight"].flatten()
    assert abs(torch.corrcoef(torch.stack((one, two)))[0, 1]) < 0.5


def test_trains() -> None:
    """The three lines of the README train."""
    x = torch.randn(32, 6, generator=torch.Generator().manual_seed(0))
    loader = [(x, x[:, :3].argmax(1))]
    made = MappingModel(network(), 40, "layerwise")
    history = MappingTrainer(made, loader, max_epochs=15, seed=0, accelerator="cpu", progress=False).fit()
    assert history["train_loss"][-1] < 0.9 * history["train_loss"][0]
