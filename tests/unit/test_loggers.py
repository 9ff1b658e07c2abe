"""The loggers and the profiler: what they write, and that a resumed run goes on in the same files."""

from __future__ import annotations

import csv
import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from mapping_core import Callback, ConfigError, MappingTrainer, MissingPackageError, NonFiniteError
from mapping_core.builtin.callbacks import Csv, Profiler, TensorBoard
from tests import targets
from tests.targets import trainer_of


class FailsAt(Callback):
    """Ends the process' run without a checkpoint, as a kill does."""

    def __init__(self, event: str, step: int) -> None:
        self.event, self.step = event, step

    def on_batch_end(self, trainer: MappingTrainer, record: Any) -> None:
        if (self.event, self.step) == ("batch", record.step):
            raise KeyboardInterrupt

    def on_epoch_end(self, trainer: MappingTrainer, record: Any) -> None:
        if (self.event, self.step) == ("epoch", record.step):
            raise KeyboardInterrupt


def run(folder: Path, *callbacks: Any, resume: str | None = None, **options: Any) -> MappingTrainer:
    """Train 2 epochs of 3 steps with a checkpoint every second step."""
    batches = targets.loader(shuffle=True)
    options = {"run_dir": folder, "checkpoint_every": 2, **options}
    trainer = trainer_of(None, batches, targets.loader(10), callbacks=list(callbacks), **options)
    trainer.fit(resume=resume)
    return trainer


def rows(folder: Path) -> list[dict[str, str]]:
    """The rows of a run's file, without what a clock decides."""
    with (folder / "csv" / "metrics.csv").open(newline="", encoding="utf-8") as file:
        return [{name: text for name, text in row.items() if name != "seconds"} for row in csv.DictReader(file)]


def test_csv(tmp_path: Path) -> None:
    """A row each `every` steps with loss, rate and gradient norm, and one an epoch with its values."""
    history = run(tmp_path, Csv(every=2)).history
    found = rows(tmp_path)
    assert [(row["step"], row["epoch"]) for row in found] == [("2", ""), ("3", "0"), ("4", ""), ("6", ""), ("6", "1")]
    assert [float(row["val_loss"]) for row in found if row["epoch"]] == history["val_loss"]
    assert all(float(row["loss"]) > 0 and float(row["gradient_norm"]) > 0 for row in found if not row["epoch"])
    assert [row["learning_rate"] for row in found if row["epoch"]] == ["", ""]


@pytest.mark.parametrize(("event", "step"), [("batch", 1), ("batch", 3), ("batch", 5), ("epoch", 3), ("epoch", 6)])
def test_csv_goes_on(event: str, step: int, tmp_path: Path) -> None:
    """Killed anywhere and resumed, the file is that of the uninterrupted run: no row twice, none missing."""
    run(tmp_path / "whole", Csv(every=1))
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "killed", FailsAt(event, step), Csv(every=1))
    run(tmp_path / "killed", Csv(every=1), resume="last")
    assert rows(tmp_path / "killed") == rows(tmp_path / "whole")


def test_csv_of_another_run_is_kept(tmp_path: Path) -> None:
    """A run that begins where another one was leaves that one's file beside its own."""
    run(tmp_path, Csv(every=1))
    first = (tmp_path / "csv" / "metrics.csv").read_bytes()
    run(tmp_path, Csv(every=1), seed=1)
    run(tmp_path, Csv(every=1), seed=2)
    assert (tmp_path / "csv-001" / "metrics.csv").read_bytes() == first
    assert len(list(tmp_path.glob("csv*"))) == 3


def test_tensorboard(tmp_path: Path) -> None:
    """Event files hold the same values, and what a resumed run repeats is there once."""
    pytest.importorskip("tensorboard", reason="tensorboard is optional")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, FailsAt("batch", 5), TensorBoard(every=1))
    history = run(tmp_path, TensorBoard(every=1), resume="last").history
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [event.step for event in events.Scalars("loss")] == [1, 2, 3, 4, 5, 6]
    assert [event.value for event in events.Scalars("val_loss")] == pytest.approx(history["val_loss"], rel=1e-6)
    assert {"learning_rate", "gradient_norm", "train_loss", "val_accuracy"} <= set(events.Tags()["scalars"])


def test_tensorboard_is_optional(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the package the error, before training, says how to install it."""
    real = importlib.util.find_spec
    monkeypatch.setattr(
        "mapping_core.builtin.callbacks.find_spec", lambda name: None if name == "tensorboard" else real(name)
    )
    with pytest.raises(MissingPackageError, match="'tensorboard' needs its package: pip install tensorboard"):
        trainer_of(callbacks=["tensorboard"], run_dir=tmp_path)


@pytest.mark.parametrize("name", ["csv", "tensorboard", "profiler"])
def test_they_need_a_folder(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without run_dir what writes files is refused, by its name."""
    monkeypatch.setattr("mapping_core.builtin.callbacks.find_spec", lambda name: object())
    with pytest.raises(ConfigError, match=f"callbacks: '{name}' needs somewhere to write: set run_dir"):
        trainer_of(callbacks=[name])


@pytest.mark.parametrize(("skip", "batches", "written"), [(1, 2, True), (3, 9, True), (50, 1, False)])
def test_profiler(skip: int, batches: int, written: bool, tmp_path: Path) -> None:
    """A window of batches becomes a table and a trace, a window that the run's end cuts short too; none, no files."""
    run(tmp_path, Profiler(skip=skip, batches=batches))
    files = sorted(path.name for path in tmp_path.glob("profile.*"))
    assert files == (["profile.json", "profile.txt"] if written else [])
    if written:
        assert "Self CPU" in (tmp_path / "profile.txt").read_text(encoding="utf-8")
        assert json.loads((tmp_path / "profile.json").read_text(encoding="utf-8"))["traceEvents"]


def test_profiler_after_an_error(tmp_path: Path) -> None:
    """An error inside the window ends the profile, and the next run may profile again."""
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, FailsAt("batch", 3), Profiler(skip=0, batches=9))
    run(tmp_path, Profiler(skip=0, batches=2))
    assert (tmp_path / "profile.txt").is_file()


def test_only_the_first_rank_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On any other rank loggers, profiler, log and progress write nothing."""
    monkeypatch.setattr(MappingTrainer, "is_first_rank", property(lambda self: False))
    callbacks = [Csv(every=1), Profiler(skip=0, batches=1), "log", "progress"]
    trainer = trainer_of(None, None, callbacks=callbacks, run_dir=tmp_path)
    trainer.fit()
    assert not list(tmp_path.glob("csv*")) + list(tmp_path.glob("profile*")) + list(tmp_path.glob("log*"))
    assert capsys.readouterr().err == ""


def test_the_log_says_by_which_error_a_run_ended(tmp_path: Path) -> None:
    """The last line of `log.jsonl` names the error and the step."""
    x, y = targets.rows(8)
    trainer = trainer_of(None, [(x * float("nan"), y)], nonfinite="skip", run_dir=tmp_path)
    with pytest.raises(NonFiniteError, match="no batch of epoch 0 had a finite loss"):
        trainer.fit()
    event = json.loads((tmp_path / "log.jsonl").read_text().splitlines()[-1])
    assert (event["event"], event["error"], event["step"]) == ("exception", "NonFiniteError", 0)
