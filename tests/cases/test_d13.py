"""D13: progress at a batch's end. Source: Lightning issue 18060 (a batch repeated or skipped after a resume)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from mapping_core import Callback, MappingModel, MappingTrainer
from tests import targets


class Ids(Callback):
    """Notes the samples that were trained on, and ends the run after some steps."""

    def __init__(self, stop_at: int | None) -> None:
        self.stop_at, self.ids, self.batch = stop_at, list[int](), list[int]()

    def on_batch_start(self, trainer: MappingTrainer, batch: Any) -> None:
        self.batch = [int(row[0]) for row in batch[0]]

    def on_batch_end(self, trainer: MappingTrainer, record: Any) -> None:
        self.ids += self.batch
        if record.stepped and record.step == self.stop_at:
            trainer.stop("enough")


def samples(folder: Path, stop_at: int | None, accumulate: int, workers: int = 0) -> list[int]:
    """The ids that one process trains on, going on where the last one stopped."""
    data = TensorDataset(torch.arange(22.0)[:, None].repeat(1, 6), torch.arange(22) % 3)
    loader = DataLoader(data, batch_size=2, shuffle=True, num_workers=workers)
    ids = Ids(stop_at)
    model = MappingModel(targets.mlp(), 16)
    targets.trainer_of(model, loader, run_dir=folder, accumulate=accumulate, callbacks=[ids]).fit(resume="last")
    return ids.ids


@pytest.mark.parametrize(("accumulate", "workers"), [(1, 0), (2, 0), (1, 1)])
def test_no_repeat_and_no_gap(accumulate: int, workers: int, tmp_path: Path) -> None:
    """Stopped at step 3 and resumed, the samples of both processes are those of an uninterrupted run, in order."""
    first = samples(tmp_path / "a", 3, accumulate, workers)
    assert len(first) == 6 * accumulate
    second = samples(tmp_path / "a", None, accumulate, workers)
    assert first + second == samples(tmp_path / "b", None, accumulate, workers)
    assert sorted(first + second) == sorted([*range(22), *range(22)])
