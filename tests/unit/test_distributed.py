"""What ranks must agree on."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from benchmarks.perf.ranks import on_two_ranks
from mapping_core import MappingError, MappingModel
from mapping_core.training.distributed import check_ranks_agree
from tests import targets

#: How models differ: what makes one of the rank, and what the error says.
DIFFERENT: dict[str, tuple[Callable[[int], nn.Module], str]] = {
    "base": (
        lambda rank: MappingModel(targets.mlp(seed=rank), 16),
        "TargetError: the target has other weights on rank 1 than on rank 0, and only what trains is sent",
    ),
    "frozen weights inside another module": (
        lambda rank: nn.ModuleDict({"net": MappingModel(targets.mlp(seed=rank), 16, base="zero", frozen="0.weight")}),
        "TargetError: the target of 'net' has other weights on rank 1",
    ),
    "latent_dim": (
        lambda rank: MappingModel(targets.mlp(), 16 + rank),
        "ConfigError: latent_dim: latent_dim is 16 on rank 0 and 17 on rank 1: build the model alike on every rank",
    ),
    "seed": (
        lambda rank: MappingModel(targets.mlp(), 16, seed=rank),
        "ConfigError: seed: seed is 0 on rank 0 and 1 on rank 1",
    ),
    "strategy": (
        lambda rank: MappingModel(targets.mlp(), 16, ["slvt", "layerwise"][rank]),
        "ConfigError: components: components is",
    ),
    "a model that is missing": (
        lambda rank: nn.ModuleList([MappingModel(targets.mlp(), 16) for _ in range(rank)]),
        "ConfigError: format: format of '0' is None on rank 0 and",
    ),
}


def checked(rank: int) -> dict[str, str]:
    """On one rank: the error of each difference; none for models that are alike, or for other modules."""
    torch.manual_seed(rank)
    check_ranks_agree(nn.Linear(2, 3))
    check_ranks_agree(MappingModel(targets.conv_norm(), 16), batches=4)
    seeded = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2))  # of other values on each rank
    check_ranks_agree(MappingModel(seeded, 8, base="seeded"))
    errors = {}
    for name, (make, _) in DIFFERENT.items():
        try:
            check_ranks_agree(make(rank))
        except MappingError as error:
            errors[name] = f"{type(error).__name__}: {error}"
    return errors


@pytest.fixture(scope="module")
def errors(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    """Give the errors of both ranks."""
    return on_two_ranks("tests.unit.test_distributed:checked", tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("name", DIFFERENT)
def test_ranks_that_differ(errors: list[dict[str, str]], name: str) -> None:
    """Every rank says what differs, between whom, and what to do."""
    assert errors[0][name].startswith(DIFFERENT[name][1])
    assert errors[1][name] == errors[0][name]
