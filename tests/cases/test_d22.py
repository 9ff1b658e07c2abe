"""D22: ranks with unequal numbers of batches. Source: Lightning issue 20404 (training waits for ever)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from mapping_core import Callback, DataError, MappingModel, MappingTrainer
from mapping_core.training.distributed import check_ranks_agree
from tests import targets
from tests.processes import RANKS, on_two_ranks

BATCHES = (5, 3)


def own_batches(rank: int) -> list[Any]:
    """As many batches as the rank has."""
    generator = torch.Generator().manual_seed(rank)
    return [(torch.randn(6, 6, generator=generator), torch.arange(6) % 3) for _ in range(BATCHES[rank])]


def by_join(rank: int) -> dict[str, Any]:
    """In a plain loop: what the check says of the lengths, and training inside torch's `join`."""
    model = MappingModel(targets.mlp(), 16)
    found: dict[str, Any] = {"error": ""}
    try:
        check_ranks_agree(model, batches=BATCHES[rank])
    except DataError as error:
        found["error"] = str(error)
    check_ranks_agree(model, batches=5)
    wrapped = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.5)
    with wrapped.join():
        for x, y in own_batches(rank):
            nn.functional.cross_entropy(wrapped(x), y).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad()
    return {**found, "latent": model.latent.tolist()}


class StopFirst(Callback):
    """Ends the run on rank 0 alone, when rank 1 has no batch left."""

    def on_batch_end(self, trainer: MappingTrainer, record: Any) -> None:
        if trainer.is_first_rank and record.batch == 3:
            trainer.stop("enough")


def by_trainer(rank: int, folder: Path | None = None, **options: Any) -> MappingTrainer:
    """Return a trainer whose loaders differ in length."""
    loader = own_batches(rank)
    return targets.trainer_of(None, loader, loader[:-1], devices=RANKS, run_dir=folder, **options)


#: Options of the trainer, and the steps of an epoch: a rank without a batch takes part in the others' steps.
OPTIONS: dict[str, tuple[dict[str, Any], int]] = {
    "plain": ({}, 5),
    "accumulate": ({"accumulate": 2}, 3),
    "clip": ({"accumulate": 4, "clip_norm": 0.1}, 2),
    "skip": ({"nonfinite": "skip"}, 5),
}


def uneven(folder: Path) -> dict[str, Any]:
    """All of it, on one rank."""
    rank = int(os.environ["RANK"])
    found: dict[str, Any] = {}
    for name, (options, _) in OPTIONS.items():
        trainer = by_trainer(rank, **options)
        trainer.fit()
        found[name] = told(trainer)
    # Each step writes a checkpoint, rank 1's batches or not; both end where rank 0 says, and go on from there.
    interrupted = by_trainer(rank, folder / "run", checkpoint_every=1, callbacks=[StopFirst()])
    interrupted.fit()
    found["interrupted"] = told(interrupted)
    resumed = by_trainer(rank, folder / "run", checkpoint_every=1)
    resumed.fit(resume="last")
    found["resumed"] = told(resumed)
    limited = by_trainer(rank, max_steps=4)
    limited.fit()
    found["limited"] = told(limited)
    found["join"] = by_join(rank)
    return found


def told(trainer: MappingTrainer) -> dict[str, Any]:
    """What a run ended with."""
    return {
        "steps": trainer.step,
        "latent": targets.latent_of(trainer).tolist(),
        "history": [record.metrics() for record in trainer.history],
    }


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Give what both ranks found, within a minute and the time it takes to start them."""
    return on_two_ranks("tests.cases.test_d22:uneven", tmp_path_factory.mktemp("ranks"), timeout=120.0)


@pytest.mark.parametrize("name", list(OPTIONS))
def test_the_trainer_ends(name: str, ranks: list[dict[str, Any]]) -> None:
    """5 and 3 batches make the steps that 5 make, on both ranks, with the same numbers at the end."""
    first, second = (rank[name] for rank in ranks)
    assert first == second
    assert first["steps"] == 2 * OPTIONS[name][1]
    assert any(first["latent"])


def test_checkpoints_and_ends(ranks: list[dict[str, Any]]) -> None:
    """A checkpoint each step, an end that rank 0 asks for when rank 1 has no batch, and going on there: no waiting."""
    for rank in ranks:
        assert rank["interrupted"]["steps"] == rank["limited"]["steps"] == 4
        assert rank["resumed"] == rank["plain"] == ranks[0]["plain"]


def test_a_plain_loop(ranks: list[dict[str, Any]]) -> None:
    """In a loop of one's own a check names both numbers on both ranks, and torch's `join` trains."""
    first, second = (rank["join"] for rank in ranks)
    assert "rank 0 has 5 batches an epoch and rank 1 3" in first["error"]
    assert first["error"] == second["error"]
    assert first["latent"] == second["latent"]
    assert any(first["latent"])
