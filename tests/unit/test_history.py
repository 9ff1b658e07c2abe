"""The history of a run: its records, as a file, as a picture, and through a checkpoint."""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from typing import Any

import pytest
from attrs import define

from mapping_core import MissingPackageError, Phase, PhasePolicyConfig, PredictionConfig
from mapping_core.contexts import PhasePolicyContext
from mapping_core.interfaces.phase_policy import PhaseDecision, PhasePolicy, Progress
from mapping_core.training.history import EpochRecord, History, PhaseRecord
from tests import targets
from tests.targets import trainer_of


@define(frozen=True, kw_only=True)
class WarmFirst(PhasePolicyConfig):
    """Two steps of warm-up, then the rest in two pieces of one phase."""

    name = "warm_first"

    def build(self, context: PhasePolicyContext) -> PhasePolicy:
        class Policy(PhasePolicy):
            def next(self, progress: Progress) -> PhaseDecision:
                if progress.step == 0:
                    return PhaseDecision(Phase.WARMUP, 2)
                return PhaseDecision(Phase.FULL, 2 if progress.step == 2 else None)

        return Policy()


def record(epoch: int, train: dict[str, float], validation: dict[str, float]) -> EpochRecord:
    """An epoch's record with these means."""
    return EpochRecord(
        epoch=epoch, step=3 * epoch + 3, train=train, validation=validation, learning_rate=0.1, seconds=1.5
    )


HISTORY = History(
    epochs=[record(0, {"loss": 0.1 + 0.2, "accuracy": 0.5}, {}), record(1, {"loss": float("nan")}, {"loss": 1e-9})],
    phases=[PhaseRecord(step=0, phase=Phase.WARMUP), PhaseRecord(step=2, phase=Phase.FULL)],
)


def test_phases_are_recorded_and_go_through_a_checkpoint(tmp_path: Path) -> None:
    """Each phase is recorded where it begins; a resumed run has those before it too."""
    expected = [PhaseRecord(step=0, phase=Phase.WARMUP), PhaseRecord(step=2, phase=Phase.FULL)]
    options: dict[str, Any] = {"prediction": PredictionConfig(policy=WarmFirst()), "run_dir": tmp_path}
    first = trainer_of(max_epochs=1, **options).fit()
    assert first.phases == expected
    resumed = trainer_of(max_epochs=2, **options).fit(resume="last")
    assert resumed.phases == expected
    assert resumed.epochs[0] == first.epochs[0]


def test_to_csv(tmp_path: Path) -> None:
    """A row an epoch, every number as exact as it was, nothing where an epoch has no value."""
    HISTORY.to_csv(tmp_path / "history.csv")
    with (tmp_path / "history.csv").open(newline="", encoding="utf-8") as file:
        first, second = csv.DictReader(file)
    assert list(first) == ["epoch", "step", "learning_rate", "seconds", "train_loss", "train_accuracy", "val_loss"]
    assert (float(first["train_loss"]), first["val_loss"]) == (0.1 + 0.2, "")
    assert (second["epoch"], second["step"], second["train_loss"], second["val_loss"]) == ("1", "6", "nan", "1e-09")


def test_plot(tmp_path: Path) -> None:
    """A picture of curves and phases, in the format its name says; an empty history has one too."""
    pytest.importorskip("matplotlib", reason="matplotlib is optional")
    HISTORY.plot(tmp_path / "history.svg")
    text = (tmp_path / "history.svg").read_text(encoding="utf-8")
    for word in ("loss", "accuracy", "optimiser step", "train", "val", "warmup", "full"):
        assert f"<!-- {word} -->" in text
    trainer_of(None, None, targets.loader(8), max_epochs=1).fit().plot(tmp_path / "run.png")
    assert (tmp_path / "run.png").read_bytes().startswith(b"\x89PNG")
    History(phases=HISTORY.phases).plot(tmp_path / "empty.svg")


def test_plot_without_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the package the error says how to install it."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingPackageError, match="plot needs matplotlib: pip install matplotlib"):
        HISTORY.plot(tmp_path / "history.png")
