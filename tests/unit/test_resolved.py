"""`resolved.toml`, and that file, Python and resumption are three ways to one run."""

from __future__ import annotations

import inspect
import os
import signal
import sys
import tomllib
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from attrs import define
from click.testing import CliRunner

from mapping_core import (
    Callback,
    CallbackConfig,
    ConfigError,
    Interrupted,
    MappingModel,
    MappingTrainer,
    PredictionConfig,
    Registry,
    RunConfig,
    TrainerConfig,
)
from mapping_core.builtin.callbacks import Ema
from mapping_core.cli import main
from mapping_core.config import dump_toml, load_toml, structure
from mapping_core.contexts import CallbackContext
from mapping_core.runs import build_trainer
from tests.targets import trainer_of

OWN = '''
"""A target and data of one's own."""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

class Net(nn.Sequential):
    def __init__(self, width=8):
        super().__init__(nn.Linear(6, width), nn.Dropout(0.2), nn.ReLU(), nn.Linear(width, 3))

def loaders(count=20):
    x = torch.randn(count, 6, generator=torch.Generator().manual_seed(0))
    data = TensorDataset(x, x[:, :3].argmax(1))
    return DataLoader(data, batch_size=4, shuffle=True), DataLoader(data, batch_size=8)
'''
TOML = """
target = "own_resolved:Net"
data = "own_resolved:loaders"
latent_dim = 16
strategy = "slvt"
seed = 5

[target_arguments]
width = 9

[trainer]
max_epochs = 3
accelerator = "cpu"
accumulate = 2
clip_norm = 0.5
checkpoint_every = 1
progress = false
run_dir = "runs/first"
callbacks = ["early_stopping", {type = "ema", decay = 0.9}]
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give a working folder with a module `own_resolved` in it."""
    (tmp_path / "own_resolved.py").write_text(OWN, encoding="utf-8")
    (tmp_path / "run.toml").write_text(TOML, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "own_resolved", raising=False)
    return tmp_path


def from_file(path: str) -> MappingTrainer:
    """The trainer of a file."""
    registry = Registry.discover()
    return build_trainer(load_toml(path, RunConfig, registry), registry)


def values(trainer: MappingTrainer) -> Any:
    """Every value of the history, and the trained numbers."""
    assert isinstance(trainer.model, MappingModel)
    records = [attrs.asdict(record, filter=lambda a, _: a.name != "seconds") for record in trainer.history]
    return records, trainer.history.phases, trainer.history.stop_reason, trainer.model.latent_vector().tolist()


def test_three_ways_to_one_run(folder: Path) -> None:
    """Through the TOML, through Python, from resolved.toml, and interrupted and resumed from it: the same bits."""
    trainer = from_file("run.toml")
    trainer.fit()
    expected = values(trainer)

    from own_resolved import Net, loaders  # type: ignore[import-not-found]

    torch.manual_seed(5)
    model = MappingModel(Net(width=9), 16, "slvt", seed=5)
    in_python = MappingTrainer(
        model,
        *loaders(),
        max_epochs=3,
        accelerator="cpu",
        accumulate=2,
        clip_norm=0.5,
        checkpoint_every=1,
        progress=False,
        run_dir="runs/python",
        callbacks=["early_stopping", Ema(decay=0.9)],
        seed=5,
    )
    in_python.fit()
    assert values(in_python) == expected

    again = from_file("runs/first/resolved.toml")
    again.fit()
    assert values(again) == expected

    interrupted, calls = from_file("runs/first/resolved.toml"), 0

    def interrupt(*_: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 8:  # in the second epoch, between its two validations
            os.kill(os.getpid(), signal.SIGINT)

    interrupted.loss.register_forward_hook(interrupt)
    with pytest.raises(Interrupted):
        interrupted.fit()
    resumed = from_file("runs/first/resolved.toml")
    resumed.fit(resume="last")
    assert 0 < interrupted.step < resumed.step
    assert values(resumed) == expected


def test_resolved_toml_is_the_whole_run(folder: Path) -> None:
    """It says every option, those that were not given too, and reads back as the configuration; a copy is set aside."""
    trainer = from_file("run.toml")
    trainer.fit()
    text = (folder / "runs" / "first" / "resolved.toml").read_text(encoding="utf-8")
    assert text.startswith("# mapping-core ")
    assert load_toml("runs/first/resolved.toml", RunConfig, Registry.discover()) == trainer.run_config
    written = tomllib.loads(text)
    assert (written["trainer"]["seed"], written["trainer"]["weight_decay"], written["mapper"]["type"]) == (
        5,
        0.0,
        "srht",
    )
    from_file("run.toml").fit()
    assert (folder / "runs" / "first" / "earlier-001" / "resolved.toml").read_text(encoding="utf-8") == text
    assert not list((folder / "runs" / "first").glob(".resolved*"))


def test_train_command_resumes(folder: Path) -> None:
    """`mapping train FILE --resume` goes on: last, best, or a folder; a wrong one is a line."""

    def train(*arguments: str) -> Any:
        return CliRunner().invoke(main, ["train", *arguments])

    first = train("run.toml", "--resume", "last")  # there is nothing yet, so it begins
    assert first.exit_code == 0, first.output
    for resume in ("last", "best", "runs/first/checkpoints/step-00000009"):
        result = train("runs/first/resolved.toml", "--resume", resume)
        assert result.exit_code == 0, result.output
        assert result.stdout == first.stdout
    result = train("run.toml", "--resume", "nowhere")
    assert (result.exit_code, result.stderr) == (2, result.stderr)
    assert result.stderr.startswith("mapping: error: nowhere: is not there; resume is")


class Own(Callback):
    """A callback that is no component."""


@define(frozen=True, kw_only=True)
class Odd(CallbackConfig):
    """A component with a value that TOML has no word for."""

    name = "odd"
    value: Any = 1 + 2j

    def build(self, context: CallbackContext) -> Callback:
        return Callback()


def test_a_trainer_made_in_python_writes_its_table(tmp_path: Path) -> None:
    """Its resolved.toml is the `[trainer]` table; objects are left out, and a comment names them."""
    trainer = trainer_of(run_dir=tmp_path / "run", callbacks=["early_stopping", Own(), Odd()], metrics={}, max_epochs=1)
    trainer.callbacks.clear()
    trainer._events.listeners.update(dict.fromkeys(trainer._events.listeners, ()))
    trainer.fit()
    text = (tmp_path / "run" / "resolved.toml").read_text(encoding="utf-8")
    assert "# made in Python: target, data and mapping are in the script that made it\n" in text
    assert "# left out, given as objects: callback Own, trainer.callbacks[1].value\n" in text
    table = tomllib.loads(text)
    assert list(table) == ["trainer"]
    table["trainer"]["callbacks"].pop()
    read = structure(table["trainer"], TrainerConfig, registry=Registry.discover())
    assert read == attrs.evolve(trainer.config, callbacks=trainer.config.callbacks[:1])


#: What only Python can say.
OBJECTS = {"optimizer", "scheduler", "metrics", "batch_adapter", "fabric", "registry"}


def test_fields_keyword_arguments_and_keys_are_one_list(tmp_path: Path) -> None:
    """`TrainerConfig`'s fields, the trainer's keyword arguments, the TOML's keys: the same names and defaults."""
    parameters = inspect.signature(MappingTrainer).parameters.values()
    arguments = {each.name: each.default for each in parameters if each.kind is each.KEYWORD_ONLY}
    fields = {each.name: each.default for each in attrs.fields(TrainerConfig)}
    assert set(arguments) > OBJECTS
    assert {name: default for name, default in arguments.items() if name not in OBJECTS} == fields
    full = TrainerConfig(
        max_steps=1,
        learning_rate=0.1,
        run_dir=tmp_path,
        checkpoint_every=1,
        clip_norm=1.0,
        clip_value=1.0,
        seed=1,
        prediction=PredictionConfig(),
    )
    assert set(tomllib.loads(dump_toml(full))) == set(fields)
    with pytest.raises(ConfigError, match="unknown key") as error:
        structure({"no_such_key": 1}, TrainerConfig, registry=Registry.discover())
    allowed = str(error.value).split("(allowed: ")[1].rstrip(")").split(", ")
    assert set(allowed) == set(fields)
