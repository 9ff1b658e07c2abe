"""Checks of losses: what training minimises."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from mapping_core.components import LossConfig
from mapping_core.contexts import LossContext
from mapping_core.errors import MappingError
from mapping_core.interfaces.loss import Loss, LossStep
from mapping_core.model import MappingModel
from mapping_core.testing.contract import Check, contract, expect
from mapping_core.testing.models import model_of, moved
from mapping_core.testing.observing import equal, global_seed
from mapping_core.testing.worlds import LossWorld
from mapping_core.training.batches import adapt_batch
from mapping_core.training.state import check_plain
from mapping_core.training.steps import forward_step


def build(component: LossConfig, world: LossWorld) -> tuple[Loss, MappingModel]:
    """Build a loss for the world's model, whose latent is not 0."""
    model = moved(model_of(world))
    return component.build(LossContext(model=model)), model


def step(model: MappingModel, batch: tuple[Any, Any]) -> LossStep:
    """One forward pass, as the trainer gives it to a loss."""
    return forward_step(model, model, adapt_batch(batch))


def batches_for(loss: Loss, model: MappingModel, world: LossWorld) -> Callable[[int], tuple[Any, Any]]:
    """The first of the world's batches that the loss takes; the last one's error where it takes none."""
    for batches in world.batches[:-1]:
        try:
            loss(step(model, batches(4)))
        except (MappingError, RuntimeError, TypeError, ValueError):
            continue
        return batches
    return world.batches[-1]


@contextmanager
def tried(component: LossConfig, world: LossWorld) -> Iterator[tuple[Loss, MappingModel, Any]]:
    """A loss, its model, and batches that it takes."""
    with global_seed(7):
        loss, model = build(component, world)
        yield loss, model, batches_for(loss, model, world)


def value(loss: Loss, model: MappingModel, batch: tuple[Any, Any]) -> Tensor:
    """The loss of a batch, under one random state each time."""
    with global_seed(7):
        result: Tensor = loss(step(model, batch))
    return result


@contract("return a Loss from build(); its forward(step) takes what the target returns and the batch's targets")
def builds(component: LossConfig, world: LossWorld) -> None:
    """`build(context)` returns a `Loss` that can be computed for classes [N], or for numbers of the outputs' shape."""
    loss, model = build(component, world)
    expect(isinstance(loss, Loss), f"build() returned {type(loss).__name__}")
    loss(step(model, batches_for(loss, model, world)(4)))


@contract("return the mean as a tensor without dimensions: .mean(), not .item() or a vector")
def is_a_finite_scalar(component: LossConfig, world: LossWorld) -> None:
    """The loss is one finite number with a gradient."""
    with tried(component, world) as (loss, model, batches):
        result = value(loss, model, batches(4))
    expect(isinstance(result, Tensor), f"gives {type(result).__name__}")
    expect(result.ndim == 0, f"has the shape {list(result.shape)}")
    expect(bool(result.isfinite()), f"is {float(result.detach())}")
    expect(result.requires_grad, "has no gradient")


@contract("compute from step.predictions or step.evaluate() with differentiable operations")
def gradient_reaches_the_latent(component: LossConfig, world: LossWorld) -> None:
    """The model's latent gets a gradient that is finite and not 0, and only `backward` sets it."""
    with tried(component, world) as (loss, model, batches):
        result = value(loss, model, batches(4))
        expect(model.latent.grad is None, "computing it writes gradients: use torch.autograd.grad in forward()")
        result.backward()  # type: ignore[no-untyped-call]
    grad = model.latent.grad
    expect(grad is not None and bool(grad.isfinite().all()), "the latent gets no finite gradient")
    expect(bool(grad is not None and grad.any()), "the latent gets a gradient of 0")


@contract("return from items() the number that forward() divides by, an int")
def is_a_mean_over_its_items(component: LossConfig, world: LossWorld) -> None:
    """Weighted by `items`, the losses of two parts of a batch give the loss of the whole."""
    with tried(component, world) as (loss, model, batches):
        x, y = batches(8)
        parts = [(x, y), (x[:3], y[:3]), (x[3:], y[3:])]
        counts = [loss.items(step(model, part)) for part in parts]
        values = [float(value(loss, model, part).detach()) for part in parts]
    expect(all(type(count) is int and count > 0 for count in counts), f"items() gives {counts[0]!r}")
    expect(counts[0] == counts[1] + counts[2], f"items: {counts[1]} and {counts[2]} of two parts, {counts[0]} in all")
    mean = (counts[1] * values[1] + counts[2] * values[2]) / counts[0]
    close = math.isclose(mean, values[0], rel_tol=1e-3, abs_tol=1e-6)
    expect(close, f"is {values[0]:.6g} for a batch whose parts have the mean {mean:.6g}")


@contract("guard what needs a gradient with torch.enable_grad() inside forward(), or leave it out: validation has none")
def works_in_validation(component: LossConfig, world: LossWorld) -> None:
    """In evaluation mode under `torch.no_grad` the loss is a finite number too."""
    with tried(component, world) as (loss, model, batches):
        loss.eval()
        model.eval()
        with torch.no_grad():
            result = value(loss, model, batches(4))
    expect(bool(result.isfinite()), f"is {float(result)}")


@contract("return {name: a number, or a tensor without dimensions} from metrics()")
def metrics_are_scalars(component: LossConfig, world: LossWorld) -> None:
    """What it reports beside the loss is a table of finite numbers by name."""
    with tried(component, world) as (loss, model, batches):
        found = step(model, batches(4))
        loss(found)
        metrics = loss.metrics(found)
    expect(isinstance(metrics, Mapping), f"metrics() gives {type(metrics).__name__}")
    for name, each in metrics.items():
        number = torch.as_tensor(each)
        scalar = number.ndim == 0 and bool(number.isfinite())
        expect(isinstance(name, str) and scalar, f"the metric {name!r} is {each!r}")


@contract("work on copies: no operation that ends in _ on predictions or targets")
def leaves_the_step_alone(component: LossConfig, world: LossWorld) -> None:
    """Predictions, targets and latents are as before."""
    with tried(component, world) as (loss, model, batches):
        found = step(model, batches(4))
        seen = (found.predictions, found.targets, dict(found.latents))
        before = _copied(seen)
        loss(found)
        expect(equal(before, _copied(seen)), "it wrote into what it was given")


@contract("keep what must survive in parameters and buffers, or in get_extra_state(): plain values and tensors")
def survives_its_state(component: LossConfig, world: LossWorld) -> None:
    """A state dict of plain values and tensors brings the same loss back."""
    with tried(component, world) as (loss, model, batches):
        with torch.no_grad():
            for parameter in loss.parameters():
                parameter.add_(0.1)
        state = loss.state_dict()
        check_plain(state, "its state")
        again = component.build(LossContext(model=model))
        again.load_state_dict(state)
        batch = batches(4)
        same = torch.allclose(value(again, model, batch), value(loss, model, batch))
    expect(same, "loaded from its state dict it gives another loss")


def _copied(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    return [_copied(item) for item in value] if isinstance(value, list | tuple) else value


#: What is checked of a loss, beside `common.CHECKS`.
CHECKS: tuple[Check[Any, Any], ...] = (
    builds,
    is_a_finite_scalar,
    gradient_reaches_the_latent,
    is_a_mean_over_its_items,
    works_in_validation,
    metrics_are_scalars,
    leaves_the_step_alone,
    survives_its_state,
)
