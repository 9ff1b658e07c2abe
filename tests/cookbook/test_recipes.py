"""The recipes of the cookbook run, with fewer epochs than they have by themselves."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sklearn", reason="the recipes' digits come with scikit-learn")

COOKBOOK = Path(__file__).parents[2] / "cookbook"


def recipe(name: str) -> Any:
    """Return the `main` of a recipe."""
    return runpy.run_path(str(COOKBOOK / f"{name}.py"))["main"]


@pytest.mark.parametrize(
    ("name", "epochs", "least"),
    [("slvt_classification", 3, 0.8), ("lrd_linear_layers", 5, 0.8), ("custom_components", 3, 0.8)],
)
def test_one_network(name: str, epochs: int, least: float) -> None:
    """A recipe that trains one network gets well beyond chance in a few epochs."""
    assert recipe(name)(epochs=epochs) > least


def test_layerwise_deeper_net() -> None:
    """All three strategies learn, with the same number of numbers."""
    assert min(recipe("layerwise_deeper_net")(epochs=3).values()) > 0.6


def test_mapping_loss() -> None:
    """One of the candidates is chosen, and tested once."""
    name, accuracy = recipe("mapping_loss")(epochs=2)
    assert name in ("the task's loss alone", "stability, weight 0.03", "stability, weight 0.3") or "trained" in name
    assert accuracy > 0.6


def test_modulation_finetuning() -> None:
    """A network that knows upright digits learns mirrored ones."""
    before, after = recipe("modulation_finetuning")(pretraining=4, epochs=10)
    assert after > before + 0.2


def test_pruning() -> None:
    """A tenth of the weights, and half of the channels, do the work."""
    assert min(recipe("pruning")(epochs=8)) > 0.7


def test_every_recipe_is_run_here() -> None:
    """No recipe is without a test."""
    text = Path(__file__).read_text(encoding="utf-8")
    assert [path.stem for path in COOKBOOK.glob("*.py") if f'"{path.stem}"' not in text] == []
