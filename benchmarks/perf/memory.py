"""Peak memory of a step, as torch's allocators count it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.perf.measuring import Plan, Row
from benchmarks.perf.networks import Network
from benchmarks.perf.step import REFERENCE, training_steps


def measure(network: Network, plan: Plan) -> list[Row]:
    """Peak bytes of one step of each method, beyond what is held before it, after a step that is not counted."""
    rows: list[Row] = []
    for method, step in training_steps(network, plan).items():
        step()
        rows.append({"method": method, "peak_bytes": peak_bytes(step, plan.device)})
    (reference,) = (row["peak_bytes"] for row in rows if row["method"] == REFERENCE)
    return [{**row, "ratio": row["peak_bytes"] / reference} for row in rows]


def peak_bytes(step: Callable[[], None], device: torch.device | None = None) -> int:
    """The most bytes that `step` holds at once, beyond what was held before it."""
    if device is not None and device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        step()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        step()
    assert profiler.profiler is not None
    assert profiler.profiler.kineto_results is not None
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    held = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return peak
