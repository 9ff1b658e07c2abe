"""D24: what DistributedDataParallel sends. Source: ultralytics issue 24410 (buffers broadcast before each pass)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.perf.ranks import RANKS, on_two_ranks
from benchmarks.perf.traffic import Traffic, counted_broadcasts
from mapping_core import MappingModel
from tests import targets
from tests.unit.test_nesting import REGISTRY, Gate

STEPS = 3
STATISTICS = 4 * (4 + 4) + 8  # BatchNorm2d(4): two means in float32, a counter in int64


class Inside(nn.Module):
    """A mapped model that is not the module that is wrapped, as in a LightningModule."""

    def __init__(self, network: MappingModel) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Any:
        return self.network(x)


def frozen_parts(**options: Any) -> MappingModel:
    """Return a model with all that must not travel: base, frozen weights, frozen statistics, a mapper's tables."""
    return MappingModel(targets.estimated_conv_norm(), 40, frozen="5.weight", trained="5.bias", **options)


def gated() -> MappingModel:
    """Return a model whose strategy remembers one number, as one with masks remembers those."""
    return MappingModel(targets.estimated_conv_norm(), 40, Gate(strategy="slvt"), registry=REGISTRY)


#: Models by name: how to make one, its trainable numbers, and the bytes of buffers that do travel before each pass.
MODELS: dict[str, tuple[Any, int, int]] = {
    "frozen": (frozen_parts, 40, 0),
    "hash": (lambda: frozen_parts(mapper="hash"), 40, 0),
    "slvt": (lambda: frozen_parts(strategy="slvt"), 40, 0),
    "lazy": (lambda: frozen_parts(lazy=True), 40, 0),
    "tracked": (lambda: MappingModel(targets.conv_norm(), 30), 30, STATISTICS),
    "gated": (gated, 40, 4),
    "inside": (lambda: Inside(frozen_parts()), 40, 0),
}


def step(model: nn.Module, rank: int) -> None:
    """Make one step on this rank's own batch."""
    x = torch.randn(6, 1, 6, 6, generator=torch.Generator().manual_seed(rank))
    nn.functional.cross_entropy(model(x), torch.arange(6) % 3).backward()  # type: ignore[no-untyped-call]
    with torch.no_grad():
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.sub_(0.5 * parameter.grad)
            parameter.grad = None


def counted(rank: int) -> dict[str, Any]:
    """On one rank: bytes at construction and at each step, and what the parameters are after the steps, by model."""
    from lightning_fabric import Fabric  # slow to import
    from lightning_fabric.strategies.ddp import DDPStrategy

    results: dict[str, Any] = {}
    for name, (make, _, _) in MODELS.items():
        with counted_broadcasts() as traffic:
            model = make()
            wrapped = DistributedDataParallel(model)
            results[name] = steps(wrapped, wrapped, traffic, rank)
    with counted_broadcasts() as traffic:
        fabric = Fabric(accelerator="cpu", devices=1, num_nodes=RANKS, strategy=DDPStrategy())
        fabric.launch()
        through_fabric = fabric.setup_module(frozen_parts())
        (inner,) = (m for m in through_fabric.modules() if isinstance(m, DistributedDataParallel))
        results["fabric"] = steps(through_fabric, inner, traffic, rank)
    return results


def steps(model: nn.Module, wrapped: DistributedDataParallel, traffic: Traffic, rank: int) -> dict[str, Any]:
    """Make some steps and count."""
    traffic.count_gradients(wrapped)
    counts = [traffic.since().broadcast]
    gradients = []
    for _ in range(STEPS):
        step(model, rank)
        past = traffic.since()
        counts.append(past.broadcast)
        gradients.append(past.gradients)
    state = {key: value.tolist() for key, value in model.state_dict().items() if "trained" in key or "latent" in key}
    return {"broadcast": counts, "gradients": gradients, "state": state}


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Give what both ranks counted."""
    return on_two_ranks("tests.cases.test_d24:counted", tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("name", [*MODELS, "fabric"])
def test_only_what_trains_travels(ranks: list[dict[str, Any]], name: str) -> None:
    """4 bytes a trainable number at construction and at each step, besides those of buffers that change: no base."""
    _, numbers, buffers = MODELS.get(name, MODELS["frozen"])
    for rank in ranks:
        assert rank[name]["gradients"] == [4 * numbers] * STEPS
        assert rank[name]["broadcast"] == [4 * numbers + buffers] + [buffers] * STEPS
    assert ranks[0][name]["state"] == ranks[1][name]["state"]
    assert any(value for value in ranks[0][name]["state"].values())
