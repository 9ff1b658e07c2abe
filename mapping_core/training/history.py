"""What a run records: a `StepRecord` a batch, an `EpochRecord` an epoch, a `History` a run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from attrs import define, field

if TYPE_CHECKING:
    from torch import Tensor

    from mapping_core.interfaces.phase_policy import Phase


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


@define
class History:
    """The epochs of a run, and why it ended.

    >>> record = EpochRecord(
    ...     epoch=0, step=9, train={"loss": 0.5}, validation={"loss": 0.6}, learning_rate=0.1, seconds=1.0
    ... )
    >>> history = History(epochs=[record])
    >>> history["val_loss"], history.last.step
    ([0.6], 9)
    """

    epochs: list[EpochRecord] = field(factory=list)
    stop_reason: str = ""

    @property
    def last(self) -> EpochRecord:
        """The last epoch's record."""
        return self.epochs[-1]

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
