"""The learning-rate range test, which leaves no trace.

Source: Smith, "Cyclical Learning Rates for Training Neural Networks" (WACV 2017), section 3.3; the
exponential rise and the smoothed loss are those of common practice since.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy
import torch
from attrs import define
from torch import Tensor

from mapping_core.errors import ConfigError, DataError
from mapping_core.training.arguments import check_loader
from mapping_core.training.engine import forward_of, place, placed, scaler_of, trainable_parameters
from mapping_core.training.gradients import GradientWindow
from mapping_core.training.modes import all_modules
from mapping_core.training.optimization import default_optimizer
from mapping_core.training.randomness import random_state, seed_everything, set_random_state
from mapping_core.training.sampling import set_epoch, with_own_order
from mapping_core.training.snapshot import changing
from mapping_core.training.steps import forward_step

if TYPE_CHECKING:
    from lightning_fabric import Fabric

    from mapping_core.training.trainer import MappingTrainer

#: A loss so many times the lowest one has diverged.
_DIVERGED = 4.0
#: The first losses are of single batches, smoothed by little: no slope is read from them.
_UNSETTLED = 5


@define(frozen=True, kw_only=True)
class RateSearch:
    """What a range test measured: the loss before the step at each rate, as it was and smoothed.

    `suggestion` is the rate at which the smoothed loss falls fastest, per factor of the rate, before
    its minimum; None where it never falls.
    """

    rates: tuple[float, ...]
    losses: tuple[float, ...]
    smoothed: tuple[float, ...]
    suggestion: float | None


def find_learning_rate(
    trainer: MappingTrainer,
    *,
    lowest: float = 1e-5,
    highest: float = 10.0,
    steps: int = 100,
    smoothing: float = 0.9,
) -> RateSearch:
    """Train for `steps` optimiser steps while the rate rises from `lowest` to `highest`, then put everything back.

    The steps are those of the trainer: its loss, precision, accumulation, clipping and optimiser (whose
    further groups keep their ratio to the first). They end early when the loss diverges. Model, loss,
    optimiser, scaler, gradients, modes and random generators are afterwards as before, bit for bit; callbacks
    and schedulers are not called. Only the place stays: the model is on the trainer's device, in its precision.

    Raises `ConfigError` for a range that is none, `DataError` for a loader that can be read once only.

    >>> import torch
    >>> from torch import nn
    >>> from torch.utils.data import DataLoader, TensorDataset
    >>> from mapping_core import MappingModel, MappingTrainer
    >>> x = torch.randn(64, 8, generator=torch.Generator().manual_seed(0))
    >>> loader = DataLoader(TensorDataset(x, (x.sum(1) > 0).long()), batch_size=16)
    >>> trainer = MappingTrainer(MappingModel(nn.Linear(8, 2), 8), loader, progress=False, seed=0)
    >>> search = find_learning_rate(trainer)
    >>> 1e-5 < search.suggestion < 10.0
    True
    """
    if not 0.0 < lowest < highest:
        raise ConfigError(f"needs 0 < lowest < highest, got {lowest} and {highest}", path="lowest")
    if steps < 2 * _UNSETTLED:
        raise ConfigError(f"must be >= {2 * _UNSETTLED}: {steps}", path="steps")
    if not 0.0 <= smoothing < 1.0:
        raise ConfigError(f"must be >= 0.0 and < 1.0: {smoothing}", path="smoothing")
    check_loader(trainer.train_loader, "train_loader", "there is no batch to try a rate on")
    if hasattr(trainer.train_loader, "__next__"):
        raise DataError(
            "train_loader is an iterator, which a search would use up: pass a loader that can be read again"
        )
    fabric = trainer.start_fabric()
    place(fabric, trainer.model)
    place(fabric, trainer.loss)
    with _untouched(trainer, scaler_of(fabric)):
        config = trainer.config
        seed_everything(None if config.seed is None else config.seed + fabric.global_rank)
        trials = _Trials(trainer, fabric)
        factor = (highest / lowest) ** (1.0 / (steps - 1))
        rates, losses, smoothed, mean = [], [], [], 0.0
        for index in range(steps):
            loss = trials.step(lowest * factor**index)
            if not math.isfinite(loss):
                break
            mean = smoothing * mean + (1.0 - smoothing) * loss
            rates.append(lowest * factor**index)
            losses.append(loss)
            smoothed.append(mean / (1.0 - smoothing ** (index + 1)))
            if index >= _UNSETTLED and smoothed[-1] > _DIVERGED * abs(min(smoothed)):
                break
    return RateSearch(
        rates=tuple(rates), losses=tuple(losses), smoothed=tuple(smoothed), suggestion=_steepest(rates, smoothed)
    )


def _steepest(rates: list[float], smoothed: list[float]) -> float | None:
    settled = smoothed[_UNSETTLED:]
    falling = settled[: 1 + int(numpy.argmin(settled))] if settled else []
    if len(falling) < 2:
        return None
    slopes = numpy.gradient(numpy.array(falling))  # the rates' logarithms are evenly spaced
    return rates[_UNSETTLED + int(numpy.argmin(slopes))]


class _Trials:
    """Optimiser steps of a trainer, each at a rate of its own."""

    def __init__(self, trainer: MappingTrainer, fabric: Fabric) -> None:
        config = trainer.config
        self._trainer, self._fabric = trainer, fabric
        self._scaler = scaler_of(fabric)
        own = trainer.own_optimizer
        self._optimizer = own or default_optimizer(
            trainer.model, trainer.loss, weight_decay=config.weight_decay, fused=self._scaler is None
        )
        groups = self._optimizer.param_groups
        # The default's further group is the loss's own numbers, whose rate `learning_rate` does not set.
        first = float(groups[0]["lr"])
        self._shares = [
            (group, float(group["lr"]) / first if first else 1.0) for group in groups[: len(groups) if own else 1]
        ]
        self._window = GradientWindow(
            fabric, trainable_parameters(trainer.model, trainer.loss, self._optimizer), config
        )
        self._forward = forward_of(fabric, trainer.model)
        self._batches = self._endless(
            with_own_order(
                trainer.train_loader, seed=config.seed or 0, rank=fabric.global_rank, world_size=fabric.world_size
            )
        )
        if not any(module.training for module in all_modules(trainer.model)):
            trainer.model.train()

    def _endless(self, loader: Any) -> Iterator[Any]:
        epoch = 0
        while True:
            set_epoch(loader, epoch)
            found = 0
            for found, batch in enumerate(loader, start=1):  # noqa: B007
                yield placed(self._fabric, batch)
            if not found:
                raise DataError("train_loader gave no batch to try a rate on")
            epoch += 1

    def step(self, rate: float) -> float:
        """Make one step at `rate`; returns the mean loss before it, which is not finite if no step was made."""
        trainer, window = self._trainer, self._window
        window.clear()
        total, count = 0.0, 0
        for _ in range(trainer.config.accumulate):
            forward = forward_step(trainer.model, self._forward, trainer.batch_adapter(next(self._batches)))
            loss, items = trainer.loss(forward), trainer.loss.items(forward)
            if items:
                total, count = total + float(loss.detach()) * items, count + items
            window.add(loss, items)
        if self._fabric.world_size > 1:
            own = torch.tensor([total, float(count)], dtype=torch.float64, device=self._fabric.device)
            both = self._fabric.all_reduce(own, reduce_op="sum")
            assert isinstance(both, Tensor)
            total, count = float(both[0]), int(both[1])
        mean = total / count if count else math.nan
        if not math.isfinite(mean):
            return mean
        window.agree(ended=False)
        if self._scaler is not None:
            self._scaler.unscale_(self._optimizer)
        norm = window.clip()
        if not math.isfinite(norm) and self._scaler is None:
            return norm
        for group, share in self._shares:
            group["lr"] = rate * share
        self._fabric.strategy.optimizer_step(self._optimizer)
        return mean


@contextmanager
def _untouched(trainer: MappingTrainer, scaler: Any) -> Iterator[None]:
    """Whatever trains inside, afterwards it is as it was."""
    modules = (trainer.model, trainer.loss)
    numbers = [(tensor, tensor.detach().clone()) for module in modules for tensor in changing(module)]
    gradients = [(parameter, parameter.grad) for module in modules for parameter in module.parameters()]
    modes = [(module, module.training) for each in modules for module in all_modules(each)]
    own = trainer.own_optimizer
    optimizer = None if own is None else copy.deepcopy(own.state_dict())
    scale = None if scaler is None else copy.deepcopy(scaler.state_dict())
    random = random_state(trainer.train_loader)
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, value in numbers:
                tensor.copy_(value)
        for parameter, gradient in gradients:
            parameter.grad = gradient
        for module, training in modes:
            module.training = training
        if own is not None and optimizer is not None:
            own.load_state_dict(optimizer)
        if scaler is not None:
            scaler.load_state_dict(scale)
        set_random_state(random, trainer.train_loader)
