"""Bad plugins, really installed: each breaks only itself, and `mapping plugins` says which, where and why."""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from attrs import define

from tests.conftest import GOOD_PLUGIN
from tests.packaging.installed import Installed

HEAD = "from attrs import define\nfrom mapping_core import MapperConfig, hookimpl\n"

MAPPER = """
@define(frozen=True, kw_only=True)
class Quick(MapperConfig):
    name = "{name}"

    def build(self, context):
        {build}

@hookimpl
def mapping_mappers({argument}):
    {before}
    return [{result}]
"""


def mapper(name: str, build: str = "pass", *, argument: str = "", before: str = "pass", result: str = "Quick") -> str:
    """The module of a plugin that adds a mapper."""
    return HEAD + MAPPER.format(name=name, build=build, argument=argument, before=before, result=result)


@define(frozen=True)
class Bad:
    """A distribution's module, and what is to be read of it: the cause, and its line (0: none)."""

    code: str
    cause: str
    line: int
    requires: str = "mapping-core"


BAD = {
    "raises-at-import": Bad("import os\nos.no_such_thing()\n", "AttributeError: module 'os' has no attribute", 2),
    "lacks-a-package": Bad("import a_package_nobody_has\n", "ModuleNotFoundError: No module named 'a_package", 1),
    "cannot-be-parsed": Bad("x = 1\ndef broken(:\n    pass\n", "SyntaxError: invalid syntax", 2),
    "needs-another-core": Bad(mapper("other_core"), "needs mapping-core>=99", 0, "mapping-core>=99"),
    "unknown-argument": Bad(mapper("argument", argument="config"), "{'config'}", 0),
    "wrong-contract": Bad(mapper("contract", result="Quick()"), "expected a subclass of MapperConfig", 0),
    "hook-raises": Bad(mapper("raising", before="1 / 0"), "ZeroDivisionError: division by zero", 13),
}

WORKING = {
    "good-plugin": GOOD_PLUGIN,
    "same-name-too": GOOD_PLUGIN,
    "slow-hook": mapper("slow", before="import time; time.sleep(0.15)"),
    "fails-in-build": mapper("fails_in_build", "return context.no_such_field"),
    "works-well": mapper("works_well", "from mapping_core.builtin import Srht; return Srht().build(context)"),
}


def write_wheel(folder: Path, name: str, code: str, requires: str = "mapping-core") -> Path:
    """Write a wheel of one module by hand, as installers take it."""
    module = name.replace("-", "_")
    info = f"{module}-1.2.dist-info"
    files = {
        f"{module}.py": code,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\nRequires-Dist: {requires}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: by hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": f"[mapping_core]\n{module} = {module}\n",
    }
    record = ""
    for path, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        record += f"{path},sha256={digest},{len(text.encode())}\n"
    wheel = folder / f"{module}-1.2-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in {**files, f"{info}/RECORD": f"{record}{info}/RECORD,,\n"}.items():
            archive.writestr(path, text)
    return wheel


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Install all of them, the bad and the working ones, side by side."""
    wheels, elsewhere = tmp_path_factory.mktemp("wheels"), tmp_path_factory.mktemp("elsewhere")
    files = [write_wheel(wheels, name, bad.code, bad.requires) for name, bad in BAD.items()]
    files += [write_wheel(wheels, name, code) for name, code in WORKING.items()]
    site = tmp_path_factory.mktemp("site") / "packages"
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "install", "--no-deps"]
    # compiling would print the one that cannot be parsed
    command += ["--no-index", "--no-compile", "--target", str(site)]
    subprocess.run([*command, *map(str, files)], check=True)
    return Installed(site, elsewhere)


@pytest.fixture(scope="module")
def report(installed: Installed) -> dict[str, Any]:
    """What `mapping plugins --json` says."""
    done = installed.mapping("plugins", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    data: dict[str, Any] = json.loads(done.stdout)
    return data


@pytest.mark.parametrize("name", BAD)
def test_the_cause_is_shown(name: str, report: dict[str, Any], installed: Installed) -> None:
    """Distribution, version, cause, and the file and line where one is known."""
    (problem,) = [each for each in report["problems"] if each["distribution"] == name]
    assert problem["version"] == "1.2"
    assert BAD[name].cause in problem["cause"]
    file = f"{installed.site / name.replace('-', '_')}.py:{BAD[name].line}"
    assert problem["file"] == (file if BAD[name].line else "")


def test_everything_else_works(report: dict[str, Any]) -> None:
    """No other plugin is missing: ours, core's own, and the strangers beside the bad ones."""
    assert {each["distribution"] for each in report["problems"]} == set(BAD)
    loaded = {each["distribution"] for each in report["plugins"]}
    assert loaded >= {"mapping-core", *WORKING}
    assert "srht" in {each["name"] for each in report["components"]["mapper"]}


def test_the_table(installed: Installed) -> None:
    """For people: each bad one with its cause, the slow one with its time, the name that two supply with both."""
    out = installed.python(
        "-c", "import os; os.environ['COLUMNS'] = '220'; from mapping_core.cli import main; main(['plugins'])"
    ).stdout
    for name, bad in BAD.items():
        assert f"did not load: plugin '{name.replace('-', '_')}' of {name} 1.2: " in out
        assert bad.cause in out
    assert "slow to load: plugin 'slow_hook' of slow-hook 1.2: 0." in out
    assert "quiet (ambiguous: write good-plugin:quiet)" in out
    assert "quiet (ambiguous: write same-name-too:quiet)" in out


MODEL = """
import torch
from mapping_core import MappingModel
from mapping_core.testing.worlds import OneLatentStrategy
target = torch.nn.Linear(6, 3)
for mapper in ("{name}", "srht"):
    try:
        model = MappingModel(target, 4, OneLatentStrategy(), mapper=mapper)
        model(torch.ones(2, 6))
    except Exception as error:
        print(mapper, type(error).__name__, error)
    else:
        print(mapper, "works")
"""


def test_a_component_that_fails_in_build(installed: Installed) -> None:
    """Whoever uses it reads which plugin failed, where and why; with another mapper all goes on."""
    out = installed.python("-W", "ignore", "-c", MODEL.format(name="fails_in_build")).stdout
    assert "fails_in_build PluginError mapper 'fails_in_build' of fails-in-build 1.2 failed in build: " in out
    assert f"AttributeError: 'MapperContext' object has no attribute 'no_such_field' ({installed.site}" in out
    assert "srht works" in out


def test_a_bad_name_in_a_configuration(installed: Installed) -> None:
    """A name that a plugin which did not load would have supplied is answered with the plugin's cause."""
    out = installed.python("-W", "ignore", "-c", MODEL.format(name="raising")).stdout
    assert "raising UnknownComponentError" in out
    assert "perhaps supplied by a plugin that did not load: plugin 'hook_raises' of hook-raises 1.2" in out


SAVED = """
import torch
from mapping_core import MappingModel
torch.manual_seed(0)
target = torch.nn.Linear(6, 3)
"""


def test_a_file_whose_plugin_is_gone(installed: Installed) -> None:
    """A model's file that needs a plugin which is no longer there says what to install."""
    save = f'{SAVED}MappingModel(target, 4, mapper="works_well").save("model")'
    assert installed.python("-W", "ignore", "-c", save).returncode == 0
    without = Installed(installed.elsewhere, installed.elsewhere)
    done = without.python("-c", f'{SAVED}MappingModel.load("model", target)')
    assert "UnknownComponentError" in done.stderr
    assert "no mapper named 'works_well' is installed" in done.stderr
    assert "pip install works-well" in done.stderr
