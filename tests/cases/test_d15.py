"""D15: an epoch's order. Source: ms-swift issue 10050 (a resumed run shuffles as the first epoch did)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from mapping_core import Callback, MappingModel, MappingTrainer
from tests import targets


class Ids(Callback):
    """Notes the samples of each epoch, and ends the run in one of them."""

    def __init__(self, stop: tuple[int, int] | None) -> None:
        self.stop, self.ids = stop, dict[int, list[int]]()

    def on_batch_start(self, trainer: MappingTrainer, batch: Any) -> None:
        self.ids.setdefault(trainer.epoch, []).extend(int(row[0]) for row in batch[0])

    def on_batch_end(self, trainer: MappingTrainer, record: Any) -> None:
        if (record.epoch, record.batch) == self.stop:
            trainer.stop("enough")


def epochs(folder: Path, stop: tuple[int, int] | None, own_sampler: bool) -> dict[int, list[int]]:
    """The ids of the epochs that one process runs."""
    data = TensorDataset(torch.arange(22.0)[:, None].repeat(1, 6), torch.arange(22) % 3)
    sampler: Any = DistributedSampler(data, num_replicas=1, rank=0, seed=4) if own_sampler else None
    loader = DataLoader(data, batch_size=4, shuffle=None if own_sampler else True, sampler=sampler)
    ids = Ids(stop)
    model = MappingModel(targets.mlp(), 16)
    targets.trainer_of(model, loader, run_dir=folder, max_epochs=4, callbacks=[ids]).fit(resume="last")
    return ids.ids


@pytest.mark.parametrize("own_sampler", [False, True])
def test_the_rest_of_the_second_epoch(own_sampler: bool, tmp_path: Path) -> None:
    """Stopped in the second epoch, its remaining samples and the later epochs are those of the uninterrupted run."""
    whole = epochs(tmp_path / "whole", None, own_sampler)
    first = epochs(tmp_path / "run", (1, 2), own_sampler)
    rest = epochs(tmp_path / "run", None, own_sampler)
    assert first[0] == whole[0]
    assert first[1] + rest[1] == whole[1]
    assert (rest[2], rest[3]) == (whole[2], whole[3])
    assert len({tuple(ids) for ids in whole.values()}) == 4  # each epoch has its own order
