"""Bytes on the wire: what DistributedDataParallel sends for a step, counted on two gloo ranks."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.perf.measuring import Plan, Row
from benchmarks.perf.networks import NETWORKS, Network, loss_of
from benchmarks.perf.ranks import on_two_ranks
from benchmarks.perf.traffic import counted_broadcasts
from mapping_core import MappingModel


def measure(network: Network, plan: Plan) -> list[Row]:
    """One row for direct training and one for each mapped model: bytes of gradients, and of buffers, a step."""
    (key,) = (key for key, each in NETWORKS.items() if each is network)
    mapped = [f"{strategy}:{dim}" for strategy, dim in plan.mapped().values()]
    with tempfile.TemporaryDirectory() as folder:
        first, second = on_two_ranks("benchmarks.perf.ddp:counted", Path(folder), key, *mapped)
    assert first == second
    rows: list[Row] = first
    return rows


def counted(rank: int, key: str, *mapped: str) -> list[dict[str, Any]]:
    """On one rank: the rows, from the second step of each model on two items a rank."""
    network = NETWORKS[key]
    torch.manual_seed(0)
    rows = [_counted("direct", network.build(), network)]
    for each in mapped:
        strategy, _, dim = each.partition(":")
        torch.manual_seed(0)
        model = MappingModel(network.build(), int(dim), strategy)
        rows.append({**_counted(f"{strategy} {dim}", model, network), "latent_dim": int(dim)})
    return rows


def _counted(method: str, model: nn.Module, network: Network) -> dict[str, Any]:
    inputs, classes = (each[:2] for each in network.batch(torch.device("cpu")))
    with counted_broadcasts() as traffic:
        wrapped = DistributedDataParallel(model)
        traffic.count_gradients(wrapped)
        start = traffic.since().broadcast
        for _ in range(2):
            traffic.since()
            loss_of(wrapped, inputs, classes).backward()  # type: ignore[no-untyped-call]
    return {
        "method": method,
        "gradient_bytes": traffic.gradients,
        "buffer_bytes": traffic.broadcast,
        "start_bytes": start,
    }
