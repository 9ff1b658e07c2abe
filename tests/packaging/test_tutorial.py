"""The plugin tutorial, followed to the letter: its files, its commands, in a fresh folder."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from attrs import define

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "plugin-tutorial.md"
#: Text, and the fenced block after it.
STEP = re.compile(r"(?P<text>.*?)^```(?P<language>\w+)\n(?P<block>.*?)^```$", re.S | re.M)
FILE = re.compile(r"`([\w.-]+\.(?:py|toml))`")


@define(frozen=True)
class Reader:
    """Somebody who does what the page says, in a folder, with an index that has the core and slvt wheels."""

    folder: Path
    index: Path

    def run(self, command: str) -> str:
        """Run a command; it must succeed."""
        scripts = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        settings = {
            "PATH": scripts,
            "PIP_FIND_LINKS": str(self.index),
            "PIP_NO_INDEX": "1",
            "PIP_NO_BUILD_ISOLATION": "0",  # to pip, this means without
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "MAPPING_PLUGINS": "mapping-plugin-slvt,mapping-plugin-enough",
        }
        done = subprocess.run(
            shlex.split(command),
            cwd=self.folder,
            env={**os.environ, **settings},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheels of core and of a strategy, as an index has them."""
    folder = tmp_path_factory.mktemp("index")
    command = [sys.executable, "-m", "pip", "--quiet", "wheel", "--no-deps", "--no-build-isolation"]
    projects = [ROOT, ROOT / "plugins" / "mapping-plugin-slvt"]
    subprocess.run([*command, "--wheel-dir", str(folder), *map(str, projects)], check=True)
    return folder


def lend_dependencies(environment: Path, lent: Path) -> None:
    """Let a new environment see what this one has, but for mapping-core, the plugins and pip: torch takes minutes."""
    lent.mkdir()
    ours = re.compile(r"__editable__|_?mapping|pip\b|pip-|distutils|__pycache__")
    for folder in [Path(path) for path in reversed(sys.path) if Path(path).name == "site-packages"]:
        for item in folder.iterdir():
            place = lent / item.name
            if not ours.match(item.name) and item.suffix != ".pth" and not place.exists():
                place.symlink_to(item)
    (site,) = environment.glob("lib/python*/site-packages")
    for item in [*site.glob("setuptools*"), *site.glob("pkg_resources"), *site.glob("_distutils_hack")]:
        shutil.rmtree(item)  # what some Pythons put there is older than torch takes
    site.joinpath("distutils-precedence.pth").unlink(missing_ok=True)
    site.joinpath("lent.pth").write_text(f"{lent}\n", encoding="utf-8")


def test_following_the_text(tmp_path: Path, index: Path) -> None:
    """Written, checked, tested, built, installed with the core wheel where nothing else of ours is, and used."""
    folder = tmp_path / "work"
    folder.mkdir()
    reader = Reader(folder, index)
    said: dict[str, str] = {}
    for step in STEP.finditer(PAGE.read_text(encoding="utf-8")):
        if step["language"] != "console":
            name = FILE.findall(step["text"])[-1]
            folder.joinpath(name).write_text(step["block"], encoding="utf-8")
            continue
        for line in step["block"].splitlines():
            command = line.removeprefix("$ ")
            said[command] = reader.run(command)
            if command == "python -m venv clean":
                lend_dependencies(folder / "clean", tmp_path / "lent")
    assert len(said) == 9
    assert "0 failed, 0 refused" in said["mapping check mapping_plugin_enough"]
    assert "0 failed, 0 refused" in said["clean/bin/mapping check mapping-plugin-enough"]
    reasons = [line.split(" ", 1) for line in said["clean/bin/python use.py"].splitlines()]
    assert [epochs for epochs, _ in reasons] == ["1", "1", "3"]  # by its name alone it has its default, 0.1
    assert all("the training loss is below 10.0" in reason for _, reason in reasons[:2])
    assert "the training loss is below 10.0" in said["clean/bin/mapping train run.toml"]
    where = reader.run("clean/bin/python -c 'import mapping_core; print(mapping_core.__file__)'")
    assert str(folder / "clean") in where
