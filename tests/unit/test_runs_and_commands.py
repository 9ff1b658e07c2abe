"""`mapping train` and `mapping demo`, from a file to a trained model, and their one-line errors."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result

from mapping_core import ConfigError, DataError, MappingModel, MappingTrainer, Registry, RunConfig
from mapping_core.cli import main
from mapping_core.runs import build_trainer

OWN = '''
"""A target and data of one's own."""
import torch
from torch import nn

class Net(nn.Sequential):
    def __init__(self, width=8):
        super().__init__(nn.Linear(6, width), nn.ReLU(), nn.Linear(width, 3))

def loaders(count=16):
    x = torch.randn(count, 6, generator=torch.Generator().manual_seed(0))
    batches = [(x[i : i + 8], x[i : i + 8, :3].argmax(1)) for i in range(0, count, 8)]
    return batches, batches[:1]

def nothing():
    return [], None

def one():
    return [1]

def breaks(count):
    return count + "1"

number = 3
'''
RUN = {"target": "own_run:Net", "data": "own_run:loaders", "latent_dim": 16, "seed": 5}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give a working folder with a module `own_run` in it."""
    (tmp_path / "own_run.py").write_text(OWN, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "own_run", raising=False)
    return tmp_path


def run(folder: Path, toml: str, *arguments: str) -> Result:
    """Run `mapping train` on a file of this content."""
    (folder / "run.toml").write_text(toml, encoding="utf-8")
    return CliRunner().invoke(main, ["train", "run.toml", *arguments])


TOML = """
target = "own_run:Net"
data = "own_run:loaders"
latent_dim = 16
seed = 5
{extra}
[trainer]
max_epochs = 2
accelerator = "cpu"
{trainer}
"""


def test_train(folder: Path) -> None:
    """A file with targets by dotted path trains, says how it ended, and leaves log and checkpoint."""
    result = run(folder, TOML.format(extra='strategy = "slvt"', trainer='run_dir = "out"'))
    assert result.exit_code == 0, result.output
    assert "max_epochs=2 reached; last epoch: train_loss " in result.stdout
    assert "val_accuracy " in result.stdout
    assert result.stdout.splitlines()[-1] == "written to out"
    assert "epoch 2/2" in result.stderr
    log = [json.loads(line) for line in (folder / "out" / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    assert log[0]["seed"] == 5
    assert run(folder, TOML.format(extra="", trainer='seed = 6\nrun_dir = "other"')).exit_code == 0
    assert '"seed": 6' in (folder / "other" / "log.jsonl").read_text(encoding="utf-8")
    assert list((folder / "out" / "checkpoints").glob("*/model.safetensors"))


def test_same_file_same_run(folder: Path) -> None:
    """A file gives the same values each time, and the seed in it decides target, mapping and training."""
    toml = TOML.format(
        extra="target_arguments = {width = 9}\ndata_arguments = {count = 24}", trainer="progress = false"
    )
    first = run(folder, toml)
    assert first.exit_code == 0, first.output
    assert run(folder, toml).stdout == first.stdout
    assert run(folder, toml.replace("seed = 5", "seed = 6")).stdout != first.stdout
    assert "written" not in first.stdout


def test_files_of_a_run_load(folder: Path) -> None:
    """The checkpoint of a run loads onto the target made again under the run's seed."""
    assert run(folder, TOML.format(extra="", trainer='run_dir = "out"')).exit_code == 0
    from own_run import Net  # type: ignore[import-not-found]

    *_, file = sorted((folder / "out" / "checkpoints").glob("*/model.safetensors"))
    torch.manual_seed(5)
    assert MappingModel.load(file, Net()).latent_dim == 16


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("latent_dim = 16", "latent_dim = -16"), "latent_dim: must be >= 1: -16 (in run.toml)"),
        (("latent_dim = 16", 'latent_dim = "16"'), "latent_dim: expected an integer, got '16' (str)"),
        (("latent_dim = 16", "latent_dim = 16\nlatent_dmi = 3"), "latent_dmi: unknown key; did you mean 'latent_dim'?"),
        (("latent_dim = 16", ""), "latent_dim: "),
        (("latent_dim = 16", "latent_dim = 16\nstrategy = 'slvvt'"), "no generator named 'slvvt'"),
        (("latent_dim = 16", "latent_dim = 1"), "latent_dim=1 is less than the target's 2 layers"),
        (("max_epochs = 2", "max_epochs = 2.5"), "trainer.max_epochs: expected an integer, got 2.5"),
        (('"cpu"', '"gpuu"'), "accelerator: 'gpuu' with devices=1"),
        (("own_run:Net", "own_run:Nte"), "target: 'own_run' has no 'Nte'; did you mean 'Net'?"),
        (("own_run:Net", "own_run:number"), "target: 'own_run' has an uncallable 'number'"),
        (("own_run:Net", "own_run:one"), "target: 'own_run:one' made a list, not a torch.nn.Module"),
        (("own_run:Net", "cnn3"), "target: 'cnn3' is neither built in (cnn1, cnn2, "),
        (("own_run:Net", "gone:Net"), "target: cannot import 'gone': ModuleNotFoundError"),
        (("own_run:Net", ":Net"), "target: cannot import ''"),
        (("own_run:loaders", "mnits"), "did you mean 'mnist'?"),
        (("own_run:loaders", "own_run:one"), "data: 'own_run:one' must return (train_loader, val_loader)"),
        (("own_run:loaders", "own_run:nothing"), "train_loader is empty"),
        (("own_run:loaders", "own_run:breaks"), "data_arguments: breaks() missing 1 required positional argument"),
        (("latent_dim = 16", "latent_dim = 16\ntarget_arguments = {widht = 3}"), "target_arguments: "),
        (("[trainer]", "[trainer"), "run.toml: is not TOML"),
    ],
)
def test_errors_are_one_line(folder: Path, change: tuple[str, str], message: str) -> None:
    """Whatever is wrong with a file ends in exit code 2 and one line that names it; `--traceback` shows more."""
    toml = TOML.format(extra="", trainer="progress = false").replace(*change)
    result = run(folder, toml)
    assert result.exit_code == 2, result.output
    (line,) = result.stderr.splitlines()
    assert line.startswith("mapping: error: ")
    assert message in line
    assert not result.stdout
    assert "Traceback" in run(folder, toml, "--traceback").stderr


def test_no_file(folder: Path) -> None:
    """A file that is not there is one line too."""
    result = CliRunner().invoke(main, ["train", "gone.toml"])
    assert result.exit_code == 2
    assert result.stderr == "mapping: error: gone.toml: cannot be read: No such file or directory\n"


def test_build_trainer_takes_components(folder: Path) -> None:
    """A `RunConfig` made in Python, with components as objects or names, gives the trainer it describes."""
    sys.path.insert(0, str(folder))
    registry = Registry.discover()
    config = RunConfig(**RUN, mapper=registry.resolve("mapper", "orthogonal"), buffers="tracked", frozen=("*.bias",))  # type: ignore[arg-type]
    trainer = build_trainer(config, registry)
    assert isinstance(trainer.model, MappingModel)
    assert trainer.model.mapper.name == "orthogonal"
    assert trainer.model.buffer_policy == "tracked"
    assert all(spec.name.endswith(".bias") for spec in trainer.model.layout.frozen)
    assert trainer.model.layout.frozen
    assert trainer.config.seed == 5
    with pytest.raises(ConfigError, match="modulation: no modulation named 'gian'"):
        build_trainer(RunConfig(**RUN, modulation="gian"), registry)  # type: ignore[arg-type]


def test_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    """The demo ends with a table of the three methods: accuracy, numbers, file, time a step."""
    monkeypatch.setenv("COLUMNS", "100")
    result = CliRunner().invoke(main, ["demo", "--epochs", "1", "--latent-dim", "256"])
    assert result.exit_code == 0, result.output
    rows = [line.split() for line in result.stdout.splitlines() if "ms" in line]
    assert [row[1] for row in rows] == ["direct", "slvt", "layerwise"]
    assert [row[row.index("%") + 2] for row in rows] == ["38,282", "256", "256"]
    assert "1 epochs, seed 0" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--epochs", "0"], "0 is not in the range"),
        (["--latent-dim", "x"], "'x' is not a valid integer"),
        (["--latent-dim", "40000"], "latent_dim=40,000 is more than the target's 38,282 mapped weights"),
    ],
)
def test_demo_refusals(arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Impossible options end the demo before it trains anything."""
    monkeypatch.setattr(MappingTrainer, "fit", lambda self: pytest.fail("has trained"))
    result = CliRunner().invoke(main, ["demo", *arguments])
    assert result.exit_code == 2
    assert message in result.stderr


def test_demo_without_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without scikit-learn the demo says what to install."""
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    result = CliRunner().invoke(main, ["demo"])
    assert result.exit_code == 2
    assert "needs scikit-learn: pip install scikit-learn" in result.stderr
    with pytest.raises(DataError, match="needs scikit-learn"):
        build_trainer(RunConfig(target="digits_cnn", data="digits", latent_dim=8), Registry.discover())
