"""The default optimiser and learning-rate schedule."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from mapping_core.errors import TargetError
from mapping_core.model import MappingModel
from mapping_core.target.wrappers import unwrapped

#: AdamW's usual rate for networks that are trained directly.
DIRECT_LEARNING_RATE = 1e-3


def default_learning_rate(model: nn.Module) -> float:
    """The learning rate used when none is given.

    For a mapped model ``0.2 * (2048 / latent_dim) ** (1/3)``: a fit to rates that worked
    for 512 to 32,768 numbers (CNN2 on FashionMNIST, held-out part of the training set). It
    means something only because mappers have unit gain and rows are scaled to the layers'
    own initialisation. For any other model 1e-3.

    >>> model = MappingModel(nn.Linear(64, 64), latent_dim=2048, strategy="slvt")
    >>> default_learning_rate(model), default_learning_rate(nn.Linear(2, 2))
    (0.2, 0.001)
    """
    model = unwrapped(model)
    if not isinstance(model, MappingModel):
        return DIRECT_LEARNING_RATE
    return float(0.2 * (2048 / model.latent_dim) ** (1 / 3))


def default_optimizer(
    model: nn.Module,
    loss: nn.Module | None = None,
    *,
    learning_rate: float | None = None,
    weight_decay: float = 0.0,
    fused: bool = True,
) -> torch.optim.Optimizer:
    """AdamW over the trainable parameters of the model, and of the loss if it has any.

    For a latent, eps is 1e-10: its gradients are sums over all weights and may be tiny late
    in training, and the usual 1e-8 would then slow it down. A loss's own parameters, such as
    learned weights of its terms, train at the rate of directly trained networks.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not parameters:
        raise TargetError(f"{type(model).__name__} has no trainable parameter")
    groups: list[dict[str, Any]] = [{"params": parameters}]
    if own := [parameter for parameter in ([] if loss is None else loss.parameters()) if parameter.requires_grad]:
        groups.append({"params": own, "lr": DIRECT_LEARNING_RATE, "weight_decay": 0.0})
    return torch.optim.AdamW(
        groups,
        lr=default_learning_rate(model) if learning_rate is None else learning_rate,
        betas=(0.9, 0.999),
        eps=1e-10 if isinstance(unwrapped(model), MappingModel) else 1e-8,
        weight_decay=weight_decay,
        fused=fused,
    )


def load_under_options(
    optimizer: torch.optim.Optimizer, schedule: LambdaLR, load: Callable[[], None], *, multiplied: float = 1.0
) -> None:
    """`load` the states of both, and keep the rates (times what a run `multiplied` them by) and the decay of this run.

    A state brings those of the run it is of, and one that is resumed with a lower `learning_rate` would not notice.
    """
    rates = [rate * multiplied for rate in schedule.base_lrs]
    decays = [group["weight_decay"] for group in optimizer.param_groups]
    load()
    schedule.base_lrs = rates
    for group, rate, decay, factor in zip(optimizer.param_groups, rates, decays, schedule.lr_lambdas, strict=True):
        group.update(initial_lr=rate, weight_decay=decay, lr=rate * factor(schedule.last_epoch))


def multiply_rate(optimizer: torch.optim.Optimizer, scheduler: Any, factor: float) -> None:
    """Multiply the learning rates, now and those that a scheduler goes on to compute."""
    if factor == 1.0:
        return
    for group in optimizer.param_groups:
        for name in ("lr", "initial_lr"):
            if name in group:
                group[name] = group[name] * factor
    if hasattr(scheduler, "base_lrs"):
        scheduler.base_lrs = [rate * factor for rate in scheduler.base_lrs]


def default_schedule(
    optimizer: torch.optim.Optimizer, *, kind: str, warmup: float, total_steps: int | None
) -> LambdaLR:
    """Linear warm-up over the share `warmup` of all steps, then cosine to 0 or constant.

    Without a known number of steps there is neither: the rate is constant.
    """
    if total_steps is None:
        return LambdaLR(optimizer, lambda step: 1.0)
    warmup_steps = round(warmup * total_steps)

    def factor(step: int) -> float:
        if step < warmup_steps:
            return (step + 1) / (warmup_steps + 1)
        if kind == "constant":
            return 1.0
        return 0.5 * (1.0 + math.cos(math.pi * (step - warmup_steps) / max(1, total_steps - warmup_steps)))

    return LambdaLR(optimizer, factor)
