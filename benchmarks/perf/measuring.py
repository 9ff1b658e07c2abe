"""Measuring in alternation: all methods take turns, so whatever else the machine does meets all of them alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from attrs import define

from benchmarks.perf.networks import Network
from mapping_core import MappingModel

#: One measured line: what it is of, and the numbers.
Row = dict[str, Any]


@define(frozen=True)
class Plan:
    """What to measure, and how often."""

    dims: tuple[int, ...]
    strategies: tuple[str, ...]
    device: torch.device
    rounds: int | None = None

    def rounds_of(self, network: Network) -> int:
        """Rounds that count; one more is made first and forgotten."""
        return self.rounds or network.rounds

    def mapped(self) -> dict[str, tuple[str, int]]:
        """Strategy and latent_dim of each mapped model, by a name for the method."""
        return {f"{name} {dim}": (name, dim) for dim in self.dims for name in self.strategies}

    def model(self, network: Network, strategy: str, dim: int) -> MappingModel:
        """A mapped network on the device."""
        torch.manual_seed(0)
        return MappingModel(network.build(), dim, strategy).to(self.device)


def alternated(
    methods: Mapping[str, Callable[[], object]], rounds: int, device: torch.device
) -> dict[str, list[float]]:
    """Milliseconds of each method in each round; a first round is made and forgotten."""
    times: dict[str, list[float]] = {name: [] for name in methods}
    for _ in range(rounds + 1):
        for name, method in methods.items():
            times[name].append(milliseconds(method, device))
    return {name: measured[1:] for name, measured in times.items()}


def milliseconds(run: Callable[[], object], device: torch.device) -> float:
    """How long one call takes; on CUDA between two events of its stream."""
    if device.type != "cuda":
        started = time.perf_counter()
        run()
        return 1000 * (time.perf_counter() - started)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    torch.cuda.synchronize(device)
    start.record()
    run()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end))


def compared(samples: list[float], reference: list[float]) -> Row:
    """The median; median and quartiles of the ratios to the reference's sample of the same round; the samples."""
    ratios = [each / other for each, other in zip(samples, reference, strict=True)]
    return {
        "ms": statistics.median(samples),
        "ratio": statistics.median(ratios),
        "ratio_quartiles": statistics.quantiles(ratios, n=4, method="inclusive")[::2],
        "samples_ms": [round(each, 4) for each in samples],
    }
