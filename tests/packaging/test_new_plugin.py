"""`mapping new-plugin`: what it writes passes its own tests, strict typing and the linter, and installs as a wheel."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from mapping_core import cli
from mapping_core.components import KINDS
from mapping_core.errors import ConfigError
from mapping_core.scaffold import EXAMPLES, RUNTIMES, plugin_files

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def projects(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Write one project of each kind with the command."""
    parent = tmp_path_factory.mktemp("projects")
    for kind in KINDS:
        name = f"made-{kind.replace('_', '-')}"
        result = CliRunner().invoke(cli.main, ["new-plugin", name, "--kind", kind, "--directory", str(parent)])
        assert result.exit_code == 0, result.output
        assert f"mapping check mapping-plugin-{name}" in result.output
    return sorted(parent.iterdir())


def python(*arguments: str, folder: Path, paths: list[Path]) -> subprocess.CompletedProcess[str]:
    """Run this Python in a folder, with more paths to import from."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_every_kind_has_an_example() -> None:
    """The tables of the generator have each kind."""
    assert EXAMPLES.keys() == RUNTIMES.keys() == KINDS.keys()


def test_each_passes_its_own_tests(projects: list[Path]) -> None:
    """The suite that each project has passes on both of its configurations."""
    sources = [project / "src" for project in projects]
    parent = projects[0].parent
    parent.joinpath("pytest.ini").write_text("[pytest]\naddopts = --import-mode=importlib\n", encoding="utf-8")
    done = python("-m", "pytest", "-q", "-p", "no:cacheprovider", str(parent), folder=parent, paths=sources)
    assert done.returncode == 0, done.stdout[-3000:]
    assert "passed" in done.stdout


def test_each_is_typed_and_clean(projects: list[Path]) -> None:
    """Strict mypy and the rules of ruff that everybody has find nothing in what is written, its tests too."""
    sources = [project / "src" for project in projects]
    parent = projects[0].parent
    tests = parent / "typed"  # mypy takes one module of a name
    tests.mkdir()
    for project in projects:
        suite = project.joinpath("tests", "test_contract.py").read_text(encoding="utf-8")
        tests.joinpath(f"test_{project.name.replace('-', '_')}.py").write_text(suite, encoding="utf-8")
    # what typing leaves here spares it torch
    options = ["--strict", "--explicit-package-bases", "--cache-dir", str(ROOT / ".mypy_cache")]
    done = python("-m", "mypy", *options, *map(str, [*sources, tests]), folder=parent, paths=sources)
    assert done.returncode == 0, done.stdout
    for project in projects:
        checked = python("-m", "ruff", "check", "--select", "B,F,I,UP", ".", folder=project, paths=[])
        assert checked.returncode == 0, checked.stdout


def test_installed_as_a_wheel(projects: list[Path], tmp_path: Path) -> None:
    """Built and installed, it is found by its entry point, and `mapping check` passes."""
    (project,) = [each for each in projects if each.name.endswith("made-phase-policy")]
    command = [sys.executable, "-m", "pip", "--quiet", "install", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "--target", str(tmp_path), str(project)], check=True)
    done = python("-m", "mapping_core", "plugins", "--json", folder=tmp_path, paths=[tmp_path])
    entries = json.loads(done.stdout)["components"]["phase_policy"]
    assert "mapping-plugin-made-phase-policy" in {entry["distribution"] for entry in entries}
    checked = python("-m", "mapping_core", "check", project.name, folder=tmp_path, paths=[tmp_path])
    assert checked.returncode == 0, checked.stdout
    assert " 0 failed, 0 refused" in checked.stdout


def test_nothing_is_written_over(tmp_path: Path) -> None:
    """A folder that is there stays as it is, and names that no component can have are refused."""
    tmp_path.joinpath("mapping-plugin-mine").mkdir()
    arguments = ["new-plugin", "mapping-plugin-mine", "--kind", "loss", "--directory", str(tmp_path)]
    result = CliRunner().invoke(cli.main, arguments)
    assert result.exit_code == 2
    assert "is there already" in result.stderr
    assert not list(tmp_path.joinpath("mapping-plugin-mine").iterdir())
    for name in ("Mine", "3d", "a/b", "a--b", ""):
        with pytest.raises(ConfigError, match="use lower-case letters"):
            plugin_files(name, "loss")
    with pytest.raises(ConfigError, match="is none of mapper"):
        plugin_files("mine", "losses")
