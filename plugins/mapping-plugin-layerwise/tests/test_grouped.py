"""The strategy `grouped`, and the budgets of `layerwise`, with core and no other plugin."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import mapping_core.builtin
import mapping_plugin_layerwise
from mapping_core import BudgetError, ConfigError, GeneratorConfig, MappingModel, MappingTrainer, Registry
from mapping_core.config import structure, unstructure
from mapping_plugin_layerwise import Grouped, Layerwise

GROUPS = {"norms": ("LayerNorm",), "biases": ("*.bias",), "body": ("0", "2")}


def network() -> nn.Sequential:
    """54 weights and 9 biases, a norm of 18, 27 weights and 3 biases."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 9), nn.LayerNorm(9), nn.Linear(9, 3))


def model(strategy: GeneratorConfig, latent_dim: int = 30, **options: Any) -> MappingModel:
    """Return a mapped network whose latent is not 0."""
    made = MappingModel(network(), latent_dim, strategy, **options)
    with torch.no_grad():
        made.latent.normal_(generator=torch.Generator().manual_seed(1))
    return made


def sizes(made: MappingModel) -> dict[str, int]:
    """The numbers of each latent."""
    return {name: z.numel() for name, z in made.latents.items()}


def test_groups() -> None:
    """The first group that matches has a parameter; latents are named after groups, in their order."""
    made = model(Grouped(groups=GROUPS))
    assert made.generator.assignment() == {
        "norms": ("1.weight", "1.bias"),
        "biases": ("0.bias", "2.bias"),
        "body": ("0.weight", "2.weight"),
    }
    assert sizes(made) == {"norms": 10, "biases": 10, "body": 10}
    assert sum(p.numel() for p in made.parameters()) == 30


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        (Layerwise(budget="sqrt"), {"0": 14, "1": 7, "2": 9}),
        (Layerwise(budget="proportional"), {"0": 17, "1": 5, "2": 8}),
        (Layerwise(budget={"Linear": 12}), {"0": 12, "1": 6, "2": 12}),
        (Layerwise(budget={"2.weight": 3, "Linear": 20}), {"0": 20, "1": 7, "2": 3}),
        (Grouped(groups=GROUPS, budget="proportional"), {"norms": 5, "biases": 3, "body": 22}),
        (Grouped(groups=GROUPS, budget={"body": 24}), {"norms": 3, "biases": 3, "body": 24}),
        (Grouped(groups={"all": ("*",)}), {"all": 30}),
    ],
)
def test_budgets(strategy: GeneratorConfig, expected: dict[str, int]) -> None:
    """A rule follows the weights; numbers are given by pattern for layers, and by name for groups."""
    assert sizes(model(strategy)) == expected


def test_spellings() -> None:
    """Object and table are one component, there and back."""
    registry = Registry.of(mapping_core.builtin, mapping_plugin_layerwise)
    for config in (Grouped(groups=GROUPS, budget={"body": 24}), Layerwise(budget={"0": 3}), Layerwise(budget="sqrt")):
        assert structure(unstructure(config), type(config), registry=registry) == config
        assert registry.resolve(GeneratorConfig, unstructure(config)) == config


@pytest.mark.parametrize(
    ("strategy", "error", "message"),
    [
        (Grouped(groups={"a": ("0",)}), ConfigError, "'1.weight' belongs to no group.*a last group with"),
        (Grouped(groups={"a": ("*",), "b": ("0",)}), ConfigError, "group 'b' is empty"),
        (Grouped(groups={"a": ("*", "0.wieght")}), ConfigError, r"groups.a: '0.wieght' matches no.*mean '0.weight'"),
        (Grouped(groups=GROUPS, budget={"bodi": 3}), ConfigError, "budget names no group 'bodi'; did you mean 'body'"),
        (Grouped(groups=GROUPS, budget={"norms": 19}), BudgetError, "'norms' has 18 weights"),
        (Layerwise(budget={"7": 3}), ConfigError, "budget: '7' matches no mapped parameter"),
        (Layerwise(budget={"*": 3}), BudgetError, "sum to 9 with latent_dim=30"),
    ],
)
def test_wrong_choices(strategy: GeneratorConfig, error: type[Exception], message: str) -> None:
    """What fits nothing is refused when the model is built, with the name at fault."""
    with pytest.raises(error, match=message):
        model(strategy)


@pytest.mark.parametrize("groups", [{}, {"a": ()}, {"a": "0"}, ["0"]])
def test_wrong_groups(groups: Any) -> None:
    """Groups are a table of lists of patterns."""
    with pytest.raises(ValueError, match="'groups' must be a table of name = list of patterns"):
        Grouped(groups=groups)


@pytest.mark.parametrize("budget", ["even", {}, {"a": 0}, {"a": 1.5}, {"a": True}, 3])
def test_wrong_budgets(budget: Any) -> None:
    """A budget is a rule or a table of positive integers."""
    with pytest.raises(ValueError, match="'budget' must"):
        Layerwise(budget=budget)


def test_trains() -> None:
    """Groups train."""
    x = torch.randn(32, 6, generator=torch.Generator().manual_seed(0))
    made = MappingModel(network(), 40, Grouped(groups=GROUPS))
    history = MappingTrainer(
        made, [(x, x[:, :3].argmax(1))], max_epochs=15, seed=0, accelerator="cpu", progress=False
    ).fit()
    assert history["train_loss"][-1] < 0.9 * history["train_loss"][0]
