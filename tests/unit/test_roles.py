"""Roles: patterns that say what is mapped, trained directly, or kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from mapping_core import MappingModel, TargetError
from mapping_core.target.roles import RoleRules
from tests import targets


def roles(module: nn.Module, **patterns: Any) -> dict[str, str]:
    """Return the role of each parameter by name."""
    return {name: role.value for name, role in RoleRules.of(**patterns).assign(module).items()}


@pytest.mark.parametrize(
    ("patterns", "mapped"),
    [
        ({}, {"block.0.weight", "block.0.bias", "block.1.weight", "block.1.bias", "head.weight", "head.bias"}),
        ({"mapped": "head"}, {"head.weight", "head.bias"}),
        ({"mapped": ["*.weight", "head.bias"]}, {"block.0.weight", "block.1.weight", "head.weight", "head.bias"}),
        ({"mapped": nn.Linear, "frozen": "head"}, {"block.1.weight", "block.1.bias"}),
        ({"frozen": "LayerNorm", "trained": "h*d"}, {"block.1.weight", "block.1.bias"}),
        ({"mapped": "block", "trained": "block.0", "frozen": "*.bias"}, {"block.1.weight"}),
    ],
)
def test_patterns(patterns: dict[str, Any], mapped: set[str]) -> None:
    """Names, paths, class names, types and globs choose; frozen wins over trained, trained over mapped."""
    given = roles(targets.Residual(), **patterns)
    assert {name for name, role in given.items() if role == "mapped"} == mapped


@pytest.mark.parametrize(
    ("patterns", "message"),
    [
        ({"trained": "haed"}, r"trained='haed' matches no parameter; did you mean 'head'"),
        ({"mapped": nn.Conv2d}, "mapped='Conv2d' matches no parameter"),
        ({"frozen": 3}, "a pattern must be a string or a module type, got 3"),
        ({"frozen": (nn.Linear, int)}, "a pattern must be a string or a module type, got <class 'int'>"),
    ],
)
def test_patterns_that_match_nothing(patterns: dict[str, Any], message: str) -> None:
    """A pattern that matches nothing is a mistake, and is said with the nearest name."""
    with pytest.raises(TargetError, match=message):
        roles(targets.Residual(), **patterns)


def test_what_cannot_change_is_kept() -> None:
    """A pattern for parameters that ask for no gradient is refused, except to freeze them."""
    with pytest.raises(TargetError, match="trained='0' matches only parameters that keep their values"):
        roles(targets.partly_frozen(), trained="0")
    assert roles(targets.partly_frozen(), frozen="0")["0.weight"] == "frozen"


def test_roles_are_in_the_file(tmp_path: Path) -> None:
    """A model with roles by type is loaded with the same roles."""
    model = MappingModel(targets.Residual(), 20, trained=nn.LayerNorm, frozen="*.bias")
    with torch.no_grad():
        model.latent.normal_()
    model.save(tmp_path / "m")
    loaded = MappingModel.load(tmp_path / "m", targets.Residual())
    assert [spec.role for spec in loaded.layout.parameters] == [spec.role for spec in model.layout.parameters]
    assert torch.equal(loaded.latent_vector(), model.latent_vector())


def test_hidden_parameters() -> None:
    """A parameter that a module also holds in a plain list or dictionary is refused, with where it is."""
    module = targets.mlp()
    module.kept = {"a": [module[2].weight]}  # type: ignore[assignment]
    with pytest.raises(TargetError, match=r"parameter '2.weight' is also held by the plain attribute 'kept'"):
        MappingModel(module, 16)
