"""What a model costs before its first step: build time, and bytes kept frozen and in files."""

from __future__ import annotations

import io
import statistics
import tempfile
from functools import partial
from pathlib import Path

import torch
from torch import nn

from benchmarks.perf.measuring import Plan, Row, milliseconds
from benchmarks.perf.networks import Network
from mapping_core import MappingModel

BUILDS = 3


def measure(network: Network, plan: Plan) -> list[Row]:
    """One row a mapped model, after one for the network itself, whose file is `torch.save` of its state."""
    target = network.build().to(plan.device)
    weights = sum(parameter.numel() for parameter in target.parameters())
    file = io.BytesIO()
    torch.save(target.state_dict(), file)
    rows: list[Row] = [{"method": "direct", "weights": weights, "file_bytes": file.getbuffer().nbytes}]
    mapped = plan.mapped()
    built: dict[str, list[float]] = {name: [] for name in mapped}
    for _ in range(BUILDS if plan.rounds is None else plan.rounds):
        for name, (strategy, dim) in mapped.items():
            built[name].append(milliseconds(partial(MappingModel, target, dim, strategy), plan.device))
    for name, (strategy, dim) in mapped.items():
        model = MappingModel(target, dim, strategy)
        frozen = model.mapping_bytes()
        rows.append(
            {
                "method": name,
                "latent_dim": dim,
                "weights": weights,
                "build_ms": statistics.median(built[name]),
                "frozen_bytes": frozen,
                "frozen_bytes_a_weight": frozen / weights,
                "file_bytes": file_bytes(model),
                "statistics_bytes": _buffer_bytes(model),
            }
        )
    return rows


def file_bytes(model: MappingModel) -> int:
    """The size of the file that `save` writes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.safetensors")
        model.save(path)
        return path.stat().st_size


def _buffer_bytes(model: nn.Module) -> int:
    return sum(buffer.nbytes for buffer in model.buffers())
