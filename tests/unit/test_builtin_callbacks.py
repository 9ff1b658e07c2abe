"""The callbacks that core brings: early stopping, log, checkpoint, progress."""

from __future__ import annotations

import io
import json
import logging
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import nn

from mapping_core import Callback, ConfigError, DataError, MappingModel, MappingTrainer
from mapping_core.builtin.callbacks import Checkpoint, EarlyStopping, Log, ProgressBar
from mapping_core.builtin.callbacks.early_stopping import EarlyStoppingCallback
from mapping_core.builtin.callbacks.progress import ProgressCallback, _span
from mapping_core.contexts import CallbackContext
from mapping_core.training import checkpoint
from mapping_core.training.checkpoint import checkpoints_in, read_checkpoint, write_checkpoint
from mapping_core.training.history import EpochRecord
from tests import targets
from tests.targets import trainer_of


def record_of(epoch: int, value: float) -> EpochRecord:
    """An epoch's record with this validation loss."""
    return EpochRecord(epoch=epoch, step=epoch, train={}, validation={"loss": value}, learning_rate=0.1, seconds=0.0)


def epochs(values: list[float], **options: Any) -> tuple[EarlyStoppingCallback, str]:
    """Show an early stopping one value an epoch; return it and the reason it stopped."""
    made = EarlyStopping(**options).build(CallbackContext(run_dir=None))
    assert isinstance(made, EarlyStoppingCallback)
    trainer = trainer_of(None, None, targets.loader(8))
    made.on_fit_start(trainer)
    for epoch, value in enumerate(values):
        made.on_epoch_end(trainer, record_of(epoch, value))
    return made, trainer.stop_reason


NAN = float("nan")


@pytest.mark.parametrize(
    ("values", "options", "best", "bad"),
    [
        ([NAN, 0.5, 0.4], {"patience": 2}, 0.4, 0),
        ([0.5, 0.6, 0.7], {"patience": 3}, 0.5, 2),
        ([0.5, 0.6, 0.4], {"patience": 2}, 0.4, 0),
        ([0.5, 0.45, 0.44], {"patience": 3, "min_delta": 0.1}, 0.5, 2),
        ([0.5, 0.6, 0.7], {"mode": "max"}, 0.7, 0),
        ([float("inf"), 1.0], {}, 1.0, 0),
    ],
)
def test_early_stopping_goes_on(values: list[float], options: dict[str, Any], best: float, bad: int) -> None:
    """NaN is never the best; improvements of more than min_delta, in the right direction, reset the count."""
    callback, reason = epochs(values, **options)
    assert (callback.best, callback.bad_epochs, reason) == (best, bad, "")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([0.5, 0.5, 0.5], "early stopping: val_loss has not improved on 0.5 for 2 epochs"),
        ([NAN, NAN], "early stopping: val_loss has not improved on None for 2 epochs"),
        ([0.5, NAN, 0.6], "val_loss has not improved on 0.5 for 2 epochs"),
    ],
)
def test_early_stopping_stops(values: list[float], message: str) -> None:
    """Epochs without improvement, NaN for ever included, end the run after `patience` of them."""
    assert message in epochs(values, patience=2)[1]


def test_early_stopping_in_a_run() -> None:
    """A run without progress ends early; a value that the run does not report is refused with those it does."""
    callbacks = [EarlyStopping(monitor="train_loss", patience=2)]
    model = targets.mlp()
    still = torch.optim.SGD(model.parameters(), lr=0.0)
    history = trainer_of(model, optimizer=still, callbacks=callbacks, max_epochs=9).fit()
    assert len(history) == 3
    with pytest.raises(ConfigError, match="monitors 'train_f1', but the run reports train_loss, train_accuracy"):
        trainer_of(callbacks=[EarlyStopping(monitor="train_f1")]).fit()


@pytest.mark.parametrize(
    ("monitor", "message"),
    [
        ("val_loss", "there is no val_loader: pass one, or monitor 'train_loss'"),
        ("loss", "a run reports 'train_...' and 'val_...', such as 'val_loss'"),
        ("train", "a run reports"),
    ],
)
@pytest.mark.parametrize("kind", [EarlyStopping, Checkpoint])
def test_a_monitor_that_cannot_be(kind: Any, monitor: str, message: str, tmp_path: Path) -> None:
    """A value that no epoch can report is an error before the first step."""
    trainer = trainer_of(callbacks=[kind(monitor=monitor)], run_dir=tmp_path)
    with pytest.raises(ConfigError, match=re.escape(message)):
        trainer.fit()
    assert trainer.step == 0


def test_early_stopping_state() -> None:
    """Its state goes into another and back; a new run begins anew."""
    callback, _ = epochs([0.5, 0.6], patience=3)
    twin, _ = epochs([], patience=3)
    twin.load_state_dict(callback.state_dict())
    assert (twin.best, twin.bad_epochs) == (0.5, 1)
    twin.on_fit_start(trainer_of(None, None, targets.loader(8)))
    assert (twin.best, twin.bad_epochs) == (None, 0)


def test_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The log has a line of JSON for start, phase, epochs, checkpoint and end, and the logger gets the same."""
    with caplog.at_level(logging.INFO, logger="mapping_core"):
        trainer = trainer_of(None, targets.loader(), targets.loader(8), run_dir=tmp_path / "run")
        history = trainer.fit()
    lines = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [line["event"] for line in lines if line["event"] != "checkpoint"] == [
        "fit_start",
        "phase",
        "epoch",
        "epoch",
        "fit_end",
    ]
    assert (lines[0]["model"], lines[0]["trainable"], lines[0]["seed"]) == ("MappingModel", 16, 0)
    assert [line["val_loss"] for line in lines if line["event"] == "epoch"] == history["val_loss"]
    assert [line["reason"] for line in lines if line["event"] == "fit_end"] == [history.stop_reason]
    assert [Path(line["path"]).is_dir() for line in lines if line["event"] == "checkpoint"] == [True, True]
    assert any("event=epoch " in record.getMessage() for record in caplog.records)


def test_log_without_a_folder(caplog: pytest.LogCaptureFixture) -> None:
    """Without run_dir the log goes to the logger alone."""
    with caplog.at_level(logging.INFO, logger="mapping_core"):
        trainer_of(callbacks=[Log()]).fit()
    assert sum("event=epoch " in record.getMessage() for record in caplog.records) == 2


def test_checkpoints_of_a_run(tmp_path: Path) -> None:
    """A run keeps its last two checkpoints and the best, each announced; the last is the trained model."""
    announced: list[str] = []

    class Hears(Callback):
        def on_checkpoint(self, trainer: MappingTrainer, path: Path) -> None:
            assert path.is_dir()
            announced.append(path.name)

    target = targets.mlp()
    model = MappingModel(target, 16)
    options: dict[str, Any] = {"max_epochs": 3, "checkpoint_every": 2, "callbacks": [Hears()]}
    history = trainer_of(model, None, targets.loader(), run_dir=tmp_path, **options).fit()
    # 3 steps an epoch: every second one, and the end of each epoch
    assert announced == [f"step-{step:08d}" for step in (2, 3, 4, 6, 6, 8, 9)]
    losses = history["val_loss"]
    best = f"step-{3 * (losses.index(min(losses)) + 1):08d}"
    folder = tmp_path / "checkpoints"
    assert {path.name for path in folder.iterdir()} == {"step-00000008", "step-00000009", best, "best"}
    assert (folder / "best").read_text().strip() == best
    loaded = MappingModel.load(folder / "step-00000009" / "model.safetensors", target)
    assert torch.equal(loaded.latent_vector(), model.latent_vector())


@pytest.mark.parametrize(
    ("values", "mode", "best"),
    [([NAN, 0.5, 0.4, NAN], "min", 0.4), ([0.5, NAN, 0.7, 0.6], "max", 0.7), ([NAN], "min", None)],
)
def test_a_nan_is_never_the_best(values: list[float], mode: str, best: float | None, tmp_path: Path) -> None:
    """The best checkpoint is that of the best number; NaN is none."""
    made = Checkpoint(mode=mode, monitor="val_loss").build(CallbackContext(run_dir=tmp_path))
    trainer = trainer_of()
    for epoch, value in enumerate(values):
        made.on_epoch_end(trainer, record_of(epoch, value))
    assert made.state_dict()["best"] == best
    with pytest.raises(ConfigError, match="'checkpoint' monitors 'val_f1', but the run reports val_loss"):
        Checkpoint(monitor="val_f1").build(CallbackContext(run_dir=tmp_path)).on_epoch_end(trainer, record_of(0, 0.1))


def test_nothing_is_written_without_run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without run_dir nothing is written, and a checkpoint is refused."""
    monkeypatch.chdir(tmp_path)
    trainer_of().fit()
    assert not list(tmp_path.iterdir())
    with pytest.raises(ConfigError, match="callbacks: 'checkpoint' needs somewhere to write: set run_dir"):
        trainer_of(callbacks=["checkpoint"])


def test_write_checkpoint_is_whole_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint replaces an older one of its name; a write that fails leaves nothing, and the old one."""
    model = MappingModel(targets.mlp(), 16)
    folder = write_checkpoint(tmp_path / "checkpoints" / "step-1", model, {"a": 1})
    (folder / "old").touch()
    assert write_checkpoint(folder, model, {"a": 2}) == folder
    assert sorted(path.name for path in folder.iterdir()) == ["model.safetensors", "state.safetensors"]

    def fails(path: Path, model: nn.Module) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "write_model", fails)
        with pytest.raises(KeyboardInterrupt):
            write_checkpoint(folder, model, {"a": 3})
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-1"]
    assert read_checkpoint(folder) == {"a": 2}


def test_what_a_killed_write_leaves_is_put_right(tmp_path: Path) -> None:
    """Half a folder is removed, and a folder that was about to be replaced is back in its place."""
    model = MappingModel(targets.mlp(), 16)
    folder = write_checkpoint(tmp_path / "checkpoints" / "step-1", model, {"a": 1})
    (folder.parent / ".step-2-abcd").mkdir()
    folder.rename(folder.parent / ".replaced-step-1")
    assert checkpoints_in(tmp_path) == [folder]
    assert read_checkpoint(folder) == {"a": 1}
    write_checkpoint(folder.parent / ".replaced-step-1", model, {"a": 0})
    assert checkpoints_in(tmp_path) == [folder]
    assert [path.name for path in folder.parent.iterdir()] == ["step-1"]


def test_checkpoint_of_a_plain_module(tmp_path: Path) -> None:
    """A module that is not mapped is written as its tensors, shared ones once."""
    import safetensors.torch

    model, twin = targets.Tied(), targets.Tied()
    with torch.no_grad():
        model.middle.weight.mul_(2)
    folder = write_checkpoint(tmp_path / "c", model, {})
    safetensors.torch.load_model(twin, folder / "model.safetensors")
    assert torch.equal(twin.middle.weight, model.middle.weight)


def shown(terminal: bool, **options: Any) -> str:
    """Return what the progress callback shows of a run."""
    out = io.StringIO()
    callback = ProgressCallback(Console(file=out, force_terminal=terminal, width=120))
    try:
        trainer_of(None, options.pop("batches", None), callbacks=[callback], **options).fit()
    except DataError:
        out.write("failed")
    return out.getvalue()


def test_progress_lines() -> None:
    """Without a terminal progress is one plain line an epoch, with its values."""
    lines = shown(terminal=False).splitlines()
    assert [line.split("  ")[0] for line in lines] == ["epoch 1/2", "epoch 2/2"]
    assert "train_loss " in lines[0]
    assert "\x1b" not in "".join(lines)


def test_progress_of_a_run_that_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rate and time left count the steps of this process alone: 3 of 9 steps in 2 s leave 3 steps and 2 s."""
    options: dict[str, Any] = {"run_dir": tmp_path, "callbacks": []}
    trainer_of(max_epochs=1, **options).fit()
    now = iter([100.0, 102.0, 104.0])
    monkeypatch.setattr("mapping_core.builtin.callbacks.progress.time", SimpleNamespace(perf_counter=lambda: next(now)))
    out = io.StringIO()
    callback = ProgressCallback(Console(file=out, width=120))
    trainer_of(max_epochs=3, run_dir=tmp_path, callbacks=[callback]).fit(resume="last")
    first, second = out.getvalue().splitlines()
    assert first.endswith(" s, 1.5 steps/s, 2 s left)")
    assert second.endswith(" s, 1.5 steps/s)")


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (99.4, "99 s"), (100.0, "2 min"), (5000.0, "83 min"), (7500.0, "2 h 05 min")]
)
def test_times_read_well(seconds: float, text: str) -> None:
    """A time left is in seconds, minutes, or hours."""
    assert _span(seconds) == text


@pytest.mark.parametrize("batches", [None, iter([])])
def test_progress_bar(batches: Any) -> None:
    """On a terminal there is a bar, and the cursor is shown again, after an error too."""
    text = shown(terminal=True, batches=batches)
    assert text.rfind("\x1b[?25h") > text.rfind("\x1b[?25l") >= 0
    assert "training" in text
    assert ("failed" in text) == (batches is not None)


def test_the_bar_goes_on_where_the_run_does() -> None:
    """A resumed run's bar begins at its step, so its rate is of steps that were made."""
    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    callback, trainer = ProgressCallback(console), trainer_of()
    trainer.step = 3
    callback.on_fit_start(trainer)
    assert callback._bar is not None
    assert [(task.completed, task.total) for task in callback._bar.tasks] == [(3, 6)]
    callback.on_fit_end(trainer)


def test_defaults_make_way() -> None:
    """A default callback is there unless one of its kind, as object, name or component, is given."""

    def kinds(**options: Any) -> list[str]:
        return [type(each).__name__ for each in trainer_of(**options).callbacks]

    assert kinds(progress=True) == ["ProgressCallback"]
    assert kinds(progress=False) == []
    assert kinds(progress=True, callbacks=[ProgressCallback()]) == ["ProgressCallback"]
    assert kinds(progress=True, callbacks=[ProgressBar(), "log"]) == ["ProgressCallback", "LogCallback"]
    assert sorted(kinds(run_dir="nowhere", callbacks=[Checkpoint()])) == ["CheckpointCallback", "LogCallback"]


@pytest.mark.parametrize("blocked", ["run", "run/checkpoints"])
def test_a_run_dir_that_cannot_be_written_to(blocked: str, tmp_path: Path) -> None:
    """A file where the run's folders must be is an error before the first step, which names run_dir."""
    (tmp_path / blocked).parent.mkdir(exist_ok=True)
    (tmp_path / blocked).touch()
    trainer = trainer_of(run_dir=tmp_path / "run")
    with pytest.raises(ConfigError, match=r"run_dir: .*run cannot be made and written to: "):
        trainer.fit()
    assert trainer.step == 0
