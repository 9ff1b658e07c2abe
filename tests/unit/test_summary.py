"""The table of `MappingModel.summary`."""

from __future__ import annotations

from torch import nn

from mapping_core import MappingModel
from mapping_core.summary import summarize
from tests import targets


def row(table: str, name: str) -> list[str]:
    """Return the cells of a parameter's line."""
    (line,) = [line for line in table.splitlines() if line.startswith(("│ " + name + " ", "┃ " + name + " "))]
    return [cell.strip() for cell in line.strip("│┃").split("│")]


def test_a_line_for_every_parameter() -> None:
    """Shape, weights, source and numbers of each; what trains directly has numbers of its own, what is frozen none."""
    table = MappingModel(targets.mlp(), 16, trained="2.bias", frozen="0.bias").summary()
    assert row(table, "0.weight") == ["0.weight", "8x6", "48", "latent 0", "7"]
    assert row(table, "0.bias") == ["0.bias", "8", "8", "nothing (frozen)", ""]
    assert row(table, "2.weight") == ["2.weight", "3x8", "24", "latent 2", "6"]
    assert row(table, "2.bias") == ["2.bias", "3", "3", "itself (trained)", "3"]


def test_a_latent_is_counted_once() -> None:
    """The numbers of a latent stand at the first parameter it feeds; the column adds up to latent_dim."""
    table = MappingModel(targets.mlp(), 16, "slvt").summary()
    numbers = [row(table, name)[-1] for name in ("0.weight", "0.bias", "2.weight", "2.bias")]
    assert numbers == ["16", "''", "''", "''"]


def test_totals_and_recipe() -> None:
    """Below the table stand weights, numbers, their ratio, the recipe, and the bytes that the mapping keeps."""
    model = MappingModel(targets.mlp(), 16, seed=3)
    text = model.summary()
    assert "Sequential through 16 numbers" in text
    assert "83 weights, 16 trainable numbers (5.2 weights a number)" in text
    assert "strategy layerwise, mapper srht, base current, seed 3" in text
    assert f"mapping state {model.mapping_bytes():,} bytes" in text


def test_ties_and_scalars() -> None:
    """A tie is one line under all its names, and a parameter without dimensions is called a scalar."""
    table = MappingModel(targets.Tied(), 12).summary()
    assert "embedding.weight = output.weight" in table
    assert "48 weights" in table
    assert row(MappingModel(targets.Scalars(), 12).summary(), "logit_scale")[1:3] == ["scalar", "1"]


def test_a_single_layer() -> None:
    """A target that is a layer itself has a latent without a path."""
    assert row(MappingModel(nn.Linear(6, 3), 5).summary(), "weight")[3] == "latent (root)"


def test_width() -> None:
    """Lines of the table keep to the width, and nothing in it is coloured."""
    text = summarize(MappingModel(targets.Residual(), 20), width=60)
    assert "\x1b" not in text
    assert max(len(line) for line in text.splitlines() if "│" in line) <= 60
