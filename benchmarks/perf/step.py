"""Step time: forward, backward and optimiser, mapped against direct training."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from benchmarks.perf.measuring import Plan, Row, alternated, compared
from benchmarks.perf.networks import Network, loss_of

REFERENCE = "direct, fused Adam"


def measure(network: Network, plan: Plan) -> list[Row]:
    """Direct training with three optimisers, mapped training with fused Adam, in turn; ratios to direct fused Adam."""
    steps = training_steps(network, plan)
    times = alternated(steps, plan.rounds_of(network), plan.device)
    return [{"method": name, **compared(samples, times[REFERENCE])} for name, samples in times.items()]


def training_steps(network: Network, plan: Plan) -> dict[str, Callable[[], None]]:
    """A function for each method that makes one step."""
    inputs, classes = network.batch(plan.device)
    steps: dict[str, Callable[[], None]] = {}
    for name, optimizer in OPTIMIZERS.items():
        model = network.build().to(plan.device)
        steps[f"direct, {name}"] = training_step(model, optimizer(list(model.parameters())), inputs, classes)
    for name, (strategy, dim) in plan.mapped().items():
        mapped = plan.model(network, strategy, dim)
        steps[name] = training_step(mapped, OPTIMIZERS["fused Adam"](list(mapped.parameters())), inputs, classes)
    return steps


def training_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, inputs: Tensor, classes: Tensor
) -> Callable[[], None]:
    """A function that makes one step."""

    def step() -> None:
        loss_of(model, inputs, classes).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


#: Small rates: the steps are timed, and the weights must stay finite.
OPTIMIZERS: dict[str, Callable[[list[nn.Parameter]], torch.optim.Optimizer]] = {
    "fused Adam": lambda parameters: torch.optim.Adam(parameters, lr=1e-4, fused=True),
    "plain Adam": lambda parameters: torch.optim.Adam(parameters, lr=1e-4, foreach=False, fused=False),
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=1e-4),
}
