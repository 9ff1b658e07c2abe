"""D23: unused parameters under DistributedDataParallel. Source: peft issue 899."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.perf.ranks import on_two_ranks
from mapping_core import MappingModel, TargetError
from mapping_core.training.distributed import check_all_used
from mapping_core.training.optimization import default_optimizer


class Detour(nn.Module):
    """Three layers, of which the middle one is never called; [N, 6] -> [N, 3]."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(6, 8)
        self.unused = nn.Linear(8, 8)
        self.last = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.last(self.first(x).relu())
        return logits


def backward(module: nn.Module) -> None:
    """Make one forward and backward pass."""
    x = torch.randn(6, 6, generator=torch.Generator().manual_seed(0))
    nn.functional.cross_entropy(module(x), torch.arange(6) % 3).backward()  # type: ignore[no-untyped-call]


def unused(rank: int) -> dict[str, Any]:
    """On one rank: an unused group of latents, and an unused parameter that trains directly."""
    group = MappingModel(Detour(), 30, "layerwise")
    wrapped = DistributedDataParallel(group)
    backward(wrapped)
    check_all_used(wrapped)
    backward(wrapped)
    assert group.latent.grad is not None
    gradients = group._split(group.latent.grad)
    idle = [name for name, names in group.generator.assignment().items() if names[0].startswith("unused")]
    found: dict[str, Any] = {
        "idle": [gradients[name].abs().max().item() for name in idle],
        "busy": [each.abs().max().item() for name, each in gradients.items() if name not in idle],
    }
    direct = DistributedDataParallel(MappingModel(Detour(), 100, trained=("unused", "last.bias")))
    backward(direct)
    with pytest.raises(TargetError) as error:
        check_all_used(direct)
    found["error"] = str(error.value)
    with pytest.raises(RuntimeError, match="finished reduction"):  # what torch says, one pass later
        backward(direct)
    searching = DistributedDataParallel(
        MappingModel(Detour(), 100, trained=("unused", "last.bias")), find_unused_parameters=True
    )
    for _ in range(2):
        backward(searching)
        check_all_used(searching)
    return found


def test_unused_parameters(tmp_path: Path) -> None:
    """A group of latents may be unused, and gets a gradient of 0; a parameter that trains directly is named."""
    for found in on_two_ranks("tests.cases.test_d23:unused", tmp_path):
        assert found["idle"]
        assert max(found["idle"]) == 0 < min(found["busy"])
        assert found["error"].startswith("'unused.weight', 'unused.bias' train, but the loss does not depend on them")


def test_the_optimiser_gets_what_trains_and_nothing_else() -> None:
    """The latent and what trains directly, each once; frozen weights are never passed."""
    model = MappingModel(Detour(), 30, trained="last.bias", frozen="first")
    (group,) = default_optimizer(model, learning_rate=0.1, weight_decay=0.0).param_groups
    assert [id(each) for each in group["params"]] == [id(model.latent), id(model.target.trained.as_dict()["last.bias"])]
    check_all_used(model)  # without processes it has nothing to say
