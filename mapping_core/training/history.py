"""What a run records: a `StepRecord` a batch, an `EpochRecord` an epoch, a `PhaseRecord` a phase, a `History` a run."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from attrs import define, field

from mapping_core.errors import MissingPackageError
from mapping_core.training.prediction_metrics import PredictionMetrics

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from torch import Tensor

    from mapping_core.interfaces.phase_policy import Phase, PhaseOutcome
    from mapping_core.training.divergence import DivergenceReport


@define(frozen=True, kw_only=True, eq=False)
class StepRecord:
    """One training batch. `step` counts optimiser steps; `epoch` and `batch` count from 0.

    `stepped` says whether an optimiser step followed it, which `step` then includes: with
    accumulation only the last batch of several has one, and a step may be skipped.
    `loss` is the batch's mean loss as a detached scalar tensor: ``float(record.loss)`` waits
    for the device, so do it rarely. `gradient_norm` is that of the step before clipping, 0.0 without a step.
    """

    step: int
    epoch: int
    batch: int
    phase: Phase
    loss: Tensor
    items: int
    learning_rate: float
    stepped: bool = True
    gradient_norm: float = 0.0


@define(frozen=True, kw_only=True)
class EpochRecord:
    """One epoch: means over all items of training (while the weights moved) and of validation (after).

    `train` and `validation` hold ``"loss"`` and what the loss reports beside it, such as
    ``"accuracy"``; `validation` is empty without a validation loader. `seconds` covers both.
    """

    epoch: int
    step: int
    train: dict[str, float]
    validation: dict[str, float]
    learning_rate: float
    seconds: float

    def metrics(self) -> dict[str, float]:
        """All values in one dictionary, as ``train_loss``, ``val_loss``, ``val_accuracy`` ..."""
        return {f"train_{name}": value for name, value in self.train.items()} | {
            f"val_{name}": value for name, value in self.validation.items()
        }


@define(frozen=True, kw_only=True)
class PhaseRecord:
    """A phase of training that began when `step` optimiser steps were done."""

    step: int
    phase: Phase


@define
class History:
    """The epochs and phases of a run, why it ended, and the bytes of a mapped model's file (`save`) at its end.

    `outcomes` says of a predictive run what each phase did, `recoveries` what its monitor saw and answered.

    >>> record = EpochRecord(
    ...     epoch=0, step=9, train={"loss": 0.5}, validation={"loss": 0.6}, learning_rate=0.1, seconds=1.0
    ... )
    >>> history = History(epochs=[record])
    >>> history["val_loss"], history.last.step
    ([0.6], 9)
    """

    epochs: list[EpochRecord] = field(factory=list)
    phases: list[PhaseRecord] = field(factory=list)
    outcomes: list[PhaseOutcome] = field(factory=list)
    recoveries: list[DivergenceReport] = field(factory=list)
    stop_reason: str = ""
    file_bytes: int | None = None

    @property
    def last(self) -> EpochRecord:
        """The last epoch's record."""
        return self.epochs[-1]

    @property
    def prediction(self) -> PredictionMetrics:
        """What predicting came to, over the whole run."""
        return PredictionMetrics.of(self.outcomes)

    def __getitem__(self, name: str) -> list[float]:
        """One value an epoch, by its name in `EpochRecord.metrics`."""
        try:
            return [record.metrics()[name] for record in self.epochs]
        except KeyError:
            known = sorted(set().union(*(record.metrics() for record in self.epochs)))
            raise KeyError(f"{name!r}: the history has {', '.join(known)}") from None

    def __len__(self) -> int:
        return len(self.epochs)

    def __iter__(self) -> Iterator[EpochRecord]:
        return iter(self.epochs)

    def to_csv(self, path: str | Path) -> None:
        """Write a row an epoch, with `EpochRecord.metrics` as columns; a value an epoch does not have is empty."""
        fixed = ("epoch", "step", "learning_rate", "seconds")
        # Not a set: the columns keep the order in which the run reports them.
        names = dict.fromkeys(name for record in self.epochs for name in record.metrics())
        with Path(path).open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, fieldnames=[*fixed, *names])
            writer.writeheader()
            for record in self.epochs:
                writer.writerow({name: getattr(record, name) for name in fixed} | record.metrics())

    def plot(self, path: str | Path) -> None:
        """Draw the losses over the optimiser steps, and beside them what else is reported; each phase is a band.

        The ending of `path` says the format (``.png``, ``.svg``, ``.pdf``). Raises `MissingPackageError`
        without matplotlib.
        """
        try:
            from matplotlib.figure import Figure
        except ImportError as error:
            raise MissingPackageError("History.plot needs matplotlib: pip install matplotlib") from error
        # train_accuracy and val_accuracy share an axis.
        kinds = dict.fromkeys(name for record in self.epochs for name in (*record.train, *record.validation))
        figure = Figure(figsize=(5.0 * max(1, len(kinds)), 3.6), layout="constrained")
        for position, kind in enumerate(kinds or ["loss"], start=1):
            axes = figure.add_subplot(1, max(1, len(kinds)), position)
            for name, means in (("train", "train"), ("val", "validation")):
                known = [
                    (each.step, getattr(each, means)[kind]) for each in self.epochs if kind in getattr(each, means)
                ]
                if known:
                    axes.plot(*zip(*known, strict=True), marker="o", markersize=3, label=name)
            self._mark_phases(axes)
            axes.set(xlabel="optimiser step", ylabel=kind)
            if axes.get_legend_handles_labels()[0]:
                axes.legend()
        figure.savefig(path)

    def _mark_phases(self, axes: Axes) -> None:
        """A band a phase, where there is more than one; each phase has its colour."""
        colours = {
            phase: f"C{2 + number}" for number, phase in enumerate(dict.fromkeys(each.phase for each in self.phases))
        }
        if len(colours) < 2:
            return
        end = self.epochs[-1].step if self.epochs else self.phases[-1].step
        ends = [*(each.step for each in self.phases[1:]), end]
        seen: set[object] = set()
        for record, until in zip(self.phases, ends, strict=True):
            label = None if record.phase in seen else record.phase.value
            axes.axvspan(record.step, until, alpha=0.15, color=colours[record.phase], label=label)
            seen.add(record.phase)
