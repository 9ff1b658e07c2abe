"""The example plugin, which nothing here knows by path: built as a wheel, installed, and used as a stranger's."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from tests.packaging.installed import Installed, install_wheel

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "mapping-plugin-fourier"

RUN = """
latent_dim = 60
target = "my_net:Net"
data = "my_net:loaders"
strategy = "{strategy}"

[mapper]
type = "fourier"
terms = 2

[trainer]
max_epochs = 2
accelerator = "cpu"
run_dir = "run"
progress = false
"""

NET = """
import torch
from torch.utils.data import DataLoader, TensorDataset

def Net():
    return torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))

def loaders():
    x = torch.randn(64, 6, generator=torch.Generator().manual_seed(0))
    data = TensorDataset(x, x[:, :3].argmax(1))
    return DataLoader(data, batch_size=16), DataLoader(data, batch_size=64)
"""


@pytest.fixture(scope="module")
def fourier(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Install the example from a copy of its sources, so that nothing is found beside it."""
    work = tmp_path_factory.mktemp("fourier")
    shutil.copytree(EXAMPLE, work / "sources")
    installed = install_wheel(work / "sources", work)
    shutil.rmtree(work / "sources" / "src")
    return installed


def test_it_is_found(fourier: Installed) -> None:
    """Its entry point adds the mapper `fourier`, from where it is installed."""
    data = json.loads(fourier.mapping("plugins", "--json", "--strict").stdout)
    (entry,) = [entry for entry in data["components"]["mapper"] if entry["name"] == "fourier"]
    assert (entry["distribution"], entry["version"]) == ("mapping-plugin-fourier", "1.0.0")
    where = fourier.python("-c", "import mapping_plugin_fourier as plugin; print(plugin.__file__)").stdout
    assert str(fourier.site) in where


def test_it_keeps_its_contract(fourier: Installed) -> None:
    """`mapping check` passes on what is installed, and so do its own tests."""
    done = fourier.mapping("check", "mapping-plugin-fourier")
    assert done.returncode == 0, done.stdout
    assert " 0 failed, 0 refused" in done.stdout
    tests = fourier.elsewhere / "test_fourier.py"
    shutil.copy(EXAMPLE / "tests" / "test_fourier.py", tests)
    fourier.elsewhere.joinpath("pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    done = fourier.python("-m", "pytest", "-q", "-p", "no:cacheprovider", str(tests), "-k", "not compiles")
    assert done.returncode == 0, done.stdout


def test_its_readme(fourier: Installed) -> None:
    """What its README shows runs: a model by a table."""
    readme = EXAMPLE.joinpath("README.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"^```python\n(.*?)^```", readme, re.S | re.M)
    done = fourier.python("-c", example)
    assert done.returncode == 0, done.stderr


def test_used_from_toml(fourier: Installed) -> None:
    """A run described in TOML trains with it, and the model's file names the plugin it needs."""
    strategies = json.loads(fourier.mapping("plugins", "--json").stdout)["components"]["generator"]
    fourier.elsewhere.joinpath("my_net.py").write_text(NET, encoding="utf-8")
    fourier.elsewhere.joinpath("run.toml").write_text(RUN.format(strategy=strategies[0]["name"]), encoding="utf-8")
    done = fourier.mapping("train", "run.toml")
    assert done.returncode == 0, done.stderr
    assert "train_loss" in done.stdout
    resolved = fourier.elsewhere.joinpath("run", "resolved.toml").read_text(encoding="utf-8")
    assert 'type = "fourier"\nterms = 2' in resolved


def test_nothing_here_knows_it() -> None:
    """No file of core, of a plugin or of the configuration names the example's package."""
    places = [ROOT / "pyproject.toml", ROOT / "requirements-dev.txt"]
    places += [
        *ROOT.glob("mapping_core/**/*.py"),
        *ROOT.glob("plugins/**/*.py"),
        *ROOT.glob("plugins/*/pyproject.toml"),
    ]
    assert not [path for path in places if "mapping_plugin_fourier" in path.read_text(encoding="utf-8")]
    assert not [path for path in places[:2] if "examples" in path.read_text(encoding="utf-8")]
