"""The recipes of the cookbook run."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

COOKBOOK = Path(__file__).parents[2] / "cookbook"


def test_slvt_classification() -> None:
    """The SLVT recipe trains, saves and loads; a few epochs get well beyond chance."""
    pytest.importorskip("sklearn", reason="the recipe's digits come with scikit-learn")
    recipe = runpy.run_path(str(COOKBOOK / "slvt_classification.py"))
    assert recipe["main"](epochs=3) > 0.8
