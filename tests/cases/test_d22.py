"""D22: ranks with unequal numbers of batches. Source: Lightning issue 20404 (training waits for ever)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.perf.ranks import on_two_ranks
from mapping_core import DataError, MappingModel
from mapping_core.training.distributed import check_ranks_agree
from tests import targets

BATCHES = (5, 3)


def uneven(rank: int) -> dict[str, Any]:
    """On one rank: what the check says of the lengths, and training inside torch's `join`."""
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
        for index in range(BATCHES[rank]):
            x = torch.randn(6, 6, generator=torch.Generator().manual_seed(10 * rank + index))
            nn.functional.cross_entropy(wrapped(x), torch.arange(6) % 3).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad()
    found["latent"] = model.latent.tolist()
    return found


def test_uneven_batches(tmp_path: Path) -> None:
    """5 and 3 batches end within a minute: a check names both numbers on both ranks, and torch's `join` trains."""
    first, second = on_two_ranks("tests.cases.test_d22:uneven", tmp_path)
    assert "rank 0 has 5 batches an epoch and rank 1 3" in first["error"]
    assert first["error"] == second["error"]
    assert first["latent"] == second["latent"]
    assert any(first["latent"])
