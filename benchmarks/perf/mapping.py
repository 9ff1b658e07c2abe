"""The mapping alone: writing the weights and reading their gradients, against a `copy_` of as many floats."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks.perf.measuring import Plan, Row, alternated, compared
from benchmarks.perf.networks import Network
from mapping_core import MappingModel


def measure(network: Network, plan: Plan) -> list[Row]:
    """Forward and backward of each mapping, in turn with the copy; ratios to the copy.

    The bytes a mapping cannot do without: the base read and the weights written, then the gradients read, 4
    bytes a weight each, and its own tables read twice. A copy reads and writes 4 bytes a weight.
    """
    weights = sum(parameter.numel() for parameter in network.build().parameters())
    source = torch.randn(weights, device=plan.device)
    copied = torch.empty_like(source)
    methods: dict[str, Callable[[], object]] = {"copy": lambda: copied.copy_(source)}
    tables: dict[str, int] = {}
    for name, (strategy, dim) in plan.mapped().items():
        model = plan.model(network, strategy, dim)
        passes = Passes(model)
        methods[f"{name} forward"], methods[f"{name} backward"] = passes.forward, passes.backward
        tables[name] = model.mapping_bytes()
    times = alternated(methods, max(10, plan.rounds_of(network)) if plan.rounds is None else plan.rounds, plan.device)
    floor = compared(times["copy"], times["copy"])
    rows: list[Row] = [{"method": "copy_", **floor, "gb_per_s": 8 * weights / floor["ms"] / 1e6}]
    for name, size in tables.items():
        forward, backward = times[f"{name} forward"], times[f"{name} backward"]
        both = compared([a + b for a, b in zip(forward, backward, strict=True)], times["copy"])
        rows.append(
            {
                "method": name,
                "forward_ms": compared(forward, times["copy"])["ms"],
                "backward_ms": compared(backward, times["copy"])["ms"],
                **both,
                "gb_per_s": (12 * weights + 2 * size) / both["ms"] / 1e6,
            }
        )
    return rows


class Passes:
    """Forward and backward passes of a model's mapping, with gradients of the weights that stay the same."""

    def __init__(self, model: MappingModel) -> None:
        self.model = model
        self.weights: dict[str, Tensor] = {}
        self.gradients = {name: torch.randn_like(weight) for name, weight in model.generate_weights().items()}

    def forward(self) -> None:
        """Generate the weights."""
        self.weights = self.model.generate_weights()

    def backward(self) -> None:
        """Take the gradients back to the latent, and let go of the weights."""
        torch.autograd.backward(list(self.weights.values()), [self.gradients[name] for name in self.weights])
        self.weights = {}
        self.model.latent.grad = None
