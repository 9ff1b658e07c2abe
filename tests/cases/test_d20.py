"""D20: the length of iterables. Source: Lightning issue 19624 (no validation where the length is wrong or missing)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from mapping_core import Callback, MappingModel, MappingTrainer
from tests import targets


class Says(list[Any]):
    """A loader that says another length than it has."""

    length = 10

    def __len__(self) -> int:
        return self.length


class SaysLess(Says):
    length = 5


class Stream(IterableDataset[Any]):
    """Samples without a length."""

    def __iter__(self) -> Iterator[Any]:
        return iter(TensorDataset(*targets.rows(32)))


class WrongStream(Stream):
    """Samples that say they are 40."""

    def __len__(self) -> int:
        return 40


class Validations(Callback):
    """Notes the step of each validation."""

    def __init__(self) -> None:
        self.steps: list[int] = []

    def on_validation_end(self, trainer: MappingTrainer, metrics: dict[str, float]) -> None:
        self.steps.append(trainer.step)


EIGHT: dict[str, Callable[[], Any]] = {
    "says 10": lambda: Says(targets.loader(32, batch_size=4)),
    "says 5": lambda: SaysLess(targets.loader(32, batch_size=4)),
    "says nothing": lambda: DataLoader(Stream(), batch_size=4),
    "a data set says 10": lambda: DataLoader(WrongStream(), batch_size=4),
}


@pytest.mark.filterwarnings("ignore:Length of IterableDataset")
@pytest.mark.parametrize("name", list(EIGHT))
@pytest.mark.parametrize(("accumulate", "steps"), [(1, [8, 16]), (3, [3, 6])])
def test_validates_every_epoch(name: str, accumulate: int, steps: list[int]) -> None:
    """8 batches, whatever their loader says: each epoch trains on all of them and validates at its end."""
    if name == "says 5" and accumulate == 3:
        steps = [3, 6]  # 3, 2 where it says the end is, and the 3 that come all the same
    validations = Validations()
    made = targets.trainer_of(
        MappingModel(targets.mlp(), 16),
        EIGHT[name](),
        DataLoader(Stream(), batch_size=4),
        accumulate=accumulate,
        callbacks=[validations],
    )
    history = made.fit()
    assert validations.steps == steps
    assert len(history["val_loss"]) == 2
    assert made.batch == 0 or made.batch == 8
