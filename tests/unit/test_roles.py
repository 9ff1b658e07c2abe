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


def test_names_that_are_no_globs(tmp_path: Path) -> None:
    """A name is matched as it is, also when it holds characters of a glob, and so is one that a file holds."""

    class Bracketed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.values = nn.ParameterDict({"a[0]": torch.ones(3), "b": torch.ones(3)})
            self.add_module("[0-9]*", nn.Linear(3, 3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            output: torch.Tensor = self.get_submodule("[0-9]*")(x * self.values["a[0]"] + self.values["b"])
            return output

    assert roles(Bracketed(), frozen="values.a[0]")["values.a[0]"] == "frozen"
    assert roles(Bracketed(), frozen="values.a[0]")["values.b"] == "mapped"
    assert roles(Bracketed(), frozen="[0-9]*")["[0-9]*.bias"] == "frozen"
    model = targets.moved(MappingModel(Bracketed(), 6, frozen=nn.ParameterDict))
    model.save(tmp_path / "m")
    x = torch.randn(2, 3)
    assert torch.equal(MappingModel.load(tmp_path / "m", Bracketed())(x), model(x))


def test_all_names_of_a_shared_parameter_count() -> None:
    """A pattern that matches any name of a shared parameter, or any module that holds it, matches the parameter."""
    for pattern in ("output", "output.weight", "embedding.weight", nn.Embedding, "Embedding"):
        given = roles(targets.Tied(), frozen=pattern)
        assert given["embedding.weight"] == "frozen"
        assert given["middle.weight"] == "mapped"


def test_the_root_is_matched_by_type_alone() -> None:
    """A pattern for the whole target is its type; no path means it."""
    assert set(roles(targets.Residual(), trained=targets.Residual).values()) == {"trained"}
    assert set(roles(nn.Linear(2, 2), frozen="Linear").values()) == {"frozen"}
    with pytest.raises(TargetError, match="trained='' matches no parameter"):
        roles(targets.Residual(), trained="")


@pytest.mark.parametrize("patterns", [{"trained": targets.Residual}, {"mapped": ()}, {"frozen": "*"}])
def test_nothing_left_to_map(patterns: dict[str, Any]) -> None:
    """Patterns that leave nothing for a latent are refused."""
    with pytest.raises(TargetError, match=r"leave nothing of Residual to map|has no parameter to map"):
        MappingModel(targets.Residual(), 12, **patterns)


def test_portable_rules() -> None:
    """In a file types are the names they match, strings stay, and roles without a pattern are left out."""
    rules = RoleRules.of(trained=(nn.LayerNorm, "head"), frozen=())
    assert rules.portable(targets.Residual()) == {"trained": ["block.0.weight", "block.0.bias", "head"]}
    assert roles(targets.Residual(), **rules.portable(targets.Residual())) == roles(
        targets.Residual(), trained=(nn.LayerNorm, "head")
    )
