"""Going on with other options than the run began with, and from what is no checkpoint."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from mapping_core import CheckpointError, ConfigError, MappingModel, MappingTrainer
from mapping_core.errors import FileFormatError
from mapping_core.training import checkpoint
from tests import targets
from tests.targets import trainer_of


def run(folder: Path, resume: str | None = None, *, batch_size: int = 4, **options: Any) -> MappingTrainer:
    """A run of 24 samples an epoch, that has been."""
    model = MappingModel(targets.mlp(), 16)
    trainer = trainer_of(model, targets.loader(24, batch_size=batch_size), run_dir=folder, **options)
    trainer.fit(resume=resume)
    return trainer


def rates(trainer: MappingTrainer) -> list[float]:
    """The rate of each epoch's last step."""
    return [record.learning_rate for record in trainer.history]


def test_options_of_the_optimizer_hold_from_the_resumption_on(tmp_path: Path) -> None:
    """A run that goes on with another learning rate and decay has them from its first step on."""
    run(tmp_path, schedule="constant", learning_rate=0.5)
    resumed = run(tmp_path, "last", schedule="constant", learning_rate=0.01, weight_decay=0.1, max_epochs=3)
    assert rates(resumed) == [0.5, 0.5, 0.01]
    assert resumed.optimizer is not None
    assert resumed.optimizer.param_groups[0]["weight_decay"] == 0.1


def test_a_longer_run_begins_on_its_own_schedule(tmp_path: Path) -> None:
    """A run whose cosine had ended at 0 goes on, with more epochs, at the rate of the longer cosine."""
    run(tmp_path / "short")
    whole, resumed = run(tmp_path / "long", max_epochs=4), run(tmp_path / "short", "last", max_epochs=4)
    assert rates(resumed)[2:] == rates(whole)[2:]
    assert resumed.step == 24


def test_another_batch_size_at_an_epochs_end(tmp_path: Path) -> None:
    """The schedule of a run whose epochs have fewer steps from now on ends with the run, after another restart too."""
    run(tmp_path / "whole")
    whole = run(tmp_path / "whole", "last", batch_size=8, max_epochs=4)
    assert (whole.step, whole.total_steps) == (12 + 6, 12 + 6)
    assert rates(whole)[2] > 0.05
    run(tmp_path / "again")
    run(tmp_path / "again", "last", batch_size=8, max_epochs=4, max_steps=14)
    again = run(tmp_path / "again", "last", batch_size=8, max_epochs=4)
    assert (again.step, again.total_steps) == (18, 18)


@pytest.mark.parametrize(
    ("resume", "error", "message"),
    [
        (True, ConfigError, "resume: must be 'last', 'best', or the folder of a checkpoint, got True"),
        ("lst", FileFormatError, "lst: is not there; resume is 'last', 'best', or the folder"),
        (".", FileFormatError, "is no checkpoint of a run, it has no"),
    ],
)
def test_what_is_no_checkpoint(resume: Any, error: type[Exception], message: str, tmp_path: Path) -> None:
    """A wrong `resume` is an error before anything is written."""
    with pytest.raises(error, match=message):
        run(tmp_path / "new", resume)
    assert not (tmp_path / "new").exists()


def test_a_run_is_no_checkpoint(tmp_path: Path) -> None:
    """Who names a run's folder is told how to go on with it."""
    run(tmp_path)
    with pytest.raises(FileFormatError, match="is a run, not one of its checkpoints: make it the run_dir"):
        run(tmp_path, str(tmp_path))


def test_a_checkpoint_that_does_not_fit_changes_nothing(tmp_path: Path) -> None:
    """A plain model whose shapes are others keeps all its numbers, and the run its resolved.toml."""
    trainer_of(targets.mlp(), run_dir=tmp_path).fit()
    resolved = (tmp_path / "resolved.toml").read_text()
    other = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 5))
    before = {name: value.clone() for name, value in other.state_dict().items()}
    with pytest.raises(FileFormatError, match="does not fit this Sequential"):
        trainer_of(other, run_dir=tmp_path, max_epochs=9).fit(resume="last")
    assert all(torch.equal(value, before[name]) for name, value in other.state_dict().items())
    assert (tmp_path / "resolved.toml").read_text() == resolved


def test_a_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint that cannot be written is an error that names it; earlier ones are whole, nothing else is left."""

    def full(path: Path, state: Any) -> None:
        raise OSError(28, "No space left on device")

    run(tmp_path, max_epochs=1)
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "write_state", full)
        with pytest.raises(CheckpointError, match=r"step-00000012: cannot be written: No space left on device"):
            run(tmp_path, "last")
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["best", "step-00000006"]
    assert len(run(tmp_path, "last").history) == 2


def test_a_folder_that_cannot_be_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run's folder that exists but takes no file is an error before training."""

    def refused(*arguments: Any, **options: Any) -> Any:
        raise PermissionError(13, os.strerror(13))

    monkeypatch.setattr(tempfile, "TemporaryFile", refused)
    with pytest.raises(ConfigError, match=r"run_dir: .* cannot be made and written to: Permission denied"):
        run(tmp_path)


def test_options_beside_an_own_optimizer() -> None:
    """A learning rate that no optimizer would take is refused."""
    model = MappingModel(targets.mlp(), 16)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with pytest.raises(ConfigError, match="learning_rate: is for the optimizer the trainer makes"):
        trainer_of(model, optimizer=optimizer, learning_rate=0.3)
