"""Versions in lockstep, and what the distributions say of each other."""

from __future__ import annotations

import ast
import configparser
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

import mapping_core

ROOT = Path(__file__).parents[2]
PLUGINS = sorted(path.parent for path in ROOT.glob("plugins/*/pyproject.toml"))


def project(folder: Path) -> dict[str, object]:
    """Return the [project] table of a distribution."""
    table: dict[str, object] = tomllib.loads(folder.joinpath("pyproject.toml").read_text(encoding="utf-8"))["project"]
    return table


def version(path: Path) -> str:
    """Return the __version__ a module assigns, without importing it."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__version__":
            return str(ast.literal_eval(node.value))
    raise AssertionError(f"{path} assigns no __version__")


def module(folder: Path) -> Path:
    """Return the one package a plugin's folder holds."""
    (path,) = folder.glob("src/*/__init__.py")
    return path


def test_there_are_plugins() -> None:
    """The tests below are about something."""
    assert {path.name for path in PLUGINS} >= {"mapping-plugin-slvt", "mapping-plugin-layerwise"}


@pytest.mark.parametrize("folder", PLUGINS, ids=lambda path: path.name)
def test_plugin_is_in_lockstep(folder: Path) -> None:
    """A plugin has core's version, takes exactly core's series, and declares its package as entry point."""
    data = project(folder)
    assert data["name"] == folder.name
    assert data["dynamic"] == ["version"]
    assert version(module(folder)) == mapping_core.__version__
    (requirement,) = [
        requirement
        for line in data["dependencies"]  # type: ignore[attr-defined]
        if (requirement := Requirement(line)).name == "mapping-core"
    ]
    major, minor, _ = mapping_core.__version__.split(".")
    assert str(requirement.specifier) == f"<{major}.{int(minor) + 1},>={major}.{minor}"
    points = data["entry-points"]["mapping_core"]  # type: ignore[index]
    assert list(points.values()) == [module(folder).parent.name]
    assert module(folder).with_name("py.typed").exists(), "the classifier says Typing :: Typed"


def test_all_extra_is_every_plugin() -> None:
    """`mapping-core[all]` installs each plugin of this repository."""
    extras = project(ROOT)["optional-dependencies"]
    names = {Requirement(line).name for line in extras["all"]}  # type: ignore[index]
    assert names == {path.name for path in PLUGINS}


def test_development_requirements_have_every_plugin() -> None:
    """requirements-dev.txt installs core and each plugin from the checkout."""
    lines = ROOT.joinpath("requirements-dev.txt").read_text(encoding="utf-8").splitlines()
    assert "-e .[demo,plot,tensorboard]" in lines
    assert {f"-e plugins/{path.name}" for path in PLUGINS} <= set(lines)


def test_every_plugin_is_type_checked() -> None:
    """tox.ini runs mypy on each plugin's folder."""
    lines = {line.strip() for line in ROOT.joinpath("tox.ini").read_text(encoding="utf-8").splitlines()}
    assert {f"mypy plugins/{path.name}" for path in PLUGINS} <= lines


def test_torch_free_environments_have_core_s_light_dependencies() -> None:
    """tox.ini lists for them what core depends on, less what needs or is torch."""
    tox = configparser.ConfigParser(interpolation=None)
    tox.read(ROOT / "tox.ini", encoding="utf-8")
    given = set(tox["testenv:py31{2,3}-torchfree"]["deps"].split())
    heavy = {"torch", "lightning-fabric", "numpy", "safetensors"}
    light = {line for line in project(ROOT)["dependencies"] if Requirement(line).name not in heavy}  # type: ignore[attr-defined]
    assert light <= given
    assert not heavy & {Requirement(line).name for line in given}


def test_the_lowest_versions_are_the_ones_core_names() -> None:
    """The environment of the lowest versions pins what core depends on to its lower bounds."""
    tox = configparser.ConfigParser(interpolation=None)
    tox.read(ROOT / "tox.ini", encoding="utf-8")
    pinned = {
        Requirement(line).name: Version(str(Requirement(line).specifier).removeprefix("=="))
        for line in tox["testenv:py311-lowest"]["deps"].split()
        if "==" in line
    }
    bounds = {
        requirement.name: Version(str(requirement.specifier).removeprefix(">="))
        for requirement in map(Requirement, project(ROOT)["dependencies"])  # type: ignore[call-overload]
        if requirement.name not in {"torch", "lightning-fabric", "numpy", "safetensors"}
    }
    assert pinned == bounds


def test_every_plugin_has_readme_licence_and_tests() -> None:
    """Each distribution carries what it is published with."""
    licence = ROOT.joinpath("LICENSE").read_bytes()
    for folder in PLUGINS:
        assert folder.joinpath("README.md").read_text(encoding="utf-8").startswith(f"# {folder.name}")
        assert folder.joinpath("LICENSE").read_bytes() == licence
        assert list(folder.glob("tests/test_*.py")), f"{folder.name} has no tests"
