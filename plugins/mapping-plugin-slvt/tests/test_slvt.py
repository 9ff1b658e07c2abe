"""The strategy `slvt`, with core and no other plugin."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import mapping_core
import mapping_core.builtin
import mapping_plugin_slvt
from mapping_core import BudgetError, GeneratorConfig, Layout, MapperConfig, MappingModel, MappingTrainer, Registry
from mapping_core.builtin.mappers import Orthogonal
from mapping_core.contexts import GeneratorContext
from mapping_plugin_slvt import Slvt


def network() -> nn.Sequential:
    """Two layers, 63 + 30 weights."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 9), nn.Linear(9, 3))


def model(latent_dim: int = 10, mapper: MapperConfig | str = "srht", seed: int = 0) -> MappingModel:
    """Return a mapped network whose latent is not 0."""
    made = MappingModel(network(), latent_dim, "slvt", mapper=mapper, seed=seed)
    with torch.no_grad():
        made.latent.normal_(generator=torch.Generator().manual_seed(1))
    return made


def test_registered() -> None:
    """The plugin adds one strategy under its name, through its entry point, at core's version."""
    registry = Registry.discover()
    assert registry.generators.get("mapping-plugin-slvt:slvt") is Slvt
    assert registry.supplier(Slvt()) == f"mapping-plugin-slvt {mapping_plugin_slvt.__version__}"
    assert mapping_plugin_slvt.__version__ == mapping_core.__version__


def test_spellings() -> None:
    """Object, name and table are one component."""
    registry = Registry.of(mapping_core.builtin, mapping_plugin_slvt)
    for given in (Slvt(), "slvt", {"type": "slvt"}):
        assert registry.resolve(GeneratorConfig, given) == Slvt()
    with pytest.raises(ValueError, match="rank: unknown key"):
        registry.resolve(GeneratorConfig, {"type": "slvt", "rank": 3})


@pytest.mark.parametrize("latent_dim", [1, 2, 10, 93])
def test_one_latent_feeds_all(latent_dim: int) -> None:
    """One latent of exactly the budget feeds every weight, from 1 number to as many as there are weights."""
    made = model(latent_dim)
    assert {name: z.numel() for name, z in made.latents.items()} == {"z": latent_dim}
    assert made.generator.assignment() == {"z": ("0.weight", "0.bias", "1.weight", "1.bias")}
    assert sum(p.numel() for p in made.parameters()) == latent_dim


def test_more_numbers_than_weights() -> None:
    """A budget above the weights is refused with both numbers."""
    with pytest.raises(BudgetError, match="latent_dim=94 is more than the target's 93 mapped weights"):
        model(94)


def test_weights_are_slices_of_one_mapping() -> None:
    """The change of every parameter is its slice of one mapper's output, times its layer's scale."""
    made = model(mapper=Orthogonal())
    layout = Layout.of(network())
    generator = Slvt().build(
        GeneratorContext(layout=layout, latent_dim=10, seed=0, mapper=Orthogonal(), modulation=None)
    )
    base = dict(network().named_parameters())
    zero = {name: torch.zeros_like(parameter) for name, parameter in base.items()}
    change = generator({"z": made.latent}, zero)
    gains = [change[spec.name].flatten() / spec.scale for spec in layout.mapped]
    matrix = generator.get_submodule("expansion.mapper")(torch.eye(10))
    torch.testing.assert_close(torch.cat(gains), made.latent @ matrix)
    for name, weights in made.generate_weights().items():
        torch.testing.assert_close(weights, base[name] + change[name])


def test_every_number_reaches_every_layer() -> None:
    """Each number of the latent moves each layer, which tells this strategy from layer-wise ones."""
    made = model()
    for name in ("0.weight", "1.weight"):
        jacobian = torch.func.jacrev(lambda z, name=name: made.generate_weights({"z": z})[name])(made.latent_vector())
        assert (jacobian.flatten(0, -2).norm(dim=0) > 0).all()


def test_trains() -> None:
    """The three lines of the README train."""
    x = torch.randn(32, 6, generator=torch.Generator().manual_seed(0))
    loader = [(x, x[:, :3].argmax(1))]
    made = MappingModel(network(), 40, "slvt")
    history = MappingTrainer(made, loader, max_epochs=15, seed=0, accelerator="cpu", progress=False).fit()
    assert history["train_loss"][-1] < 0.9 * history["train_loss"][0]
