"""Running a model over a loader without training it: means over all items, metrics, outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from mapping_core.builtin.losses.predictions import main_tensor
from mapping_core.errors import ConfigError, DataError
from mapping_core.interfaces.loss import Loss
from mapping_core.training.agreement import gathered
from mapping_core.training.averages import Averages
from mapping_core.training.batches import Batch
from mapping_core.training.modes import evaluation_mode
from mapping_core.training.steps import forward_step

if TYPE_CHECKING:
    from lightning_fabric import Fabric


@torch.no_grad()
def evaluate(
    model: nn.Module,
    forward: Callable[..., Any],
    batches: Iterator[Any],
    *,
    adapt: Callable[[Any], Batch],
    loss: Loss,
    metrics: Mapping[str, Any],
    fabric: Fabric,
    what: str,
) -> dict[str, float]:
    """The loss and what it reports, as means over all items of all ranks, and each of `metrics`, computed at the end.

    A metric is asked for three methods, which torchmetrics' have: ``reset()``,
    ``update(predictions, targets)`` and ``compute()``.
    """
    averages = Averages()
    for metric in metrics.values():
        metric.reset()
    with evaluation_mode(model):
        for raw in batches:
            step = forward_step(model, forward, adapt(raw))
            averages.add({"loss": loss(step), **loss.metrics(step)}, items=loss.items(step))
            for metric in metrics.values():
                metric.update(main_tensor(step.predictions, "a metric"), step.targets)
    if fabric.world_size > 1:
        averages.merge(gathered(fabric, averages.state_dict()))
    if averages.items == 0:
        raise DataError(f"the {what} loader gave no batch with items")
    return averages.means() | {name: float(metric.compute()) for name, metric in metrics.items()}


@torch.no_grad()
def predict(
    model: nn.Module,
    forward: Callable[..., Any],
    batches: Iterator[Any],
    inputs_of: Callable[[Any], tuple[tuple[Any, ...], Mapping[str, Any]]],
) -> Any:
    """The outputs for all inputs, on the CPU: tensors joined along their first dimension, in the output's own nest."""
    with evaluation_mode(model):
        outputs = []
        for raw in batches:
            args, kwargs = inputs_of(raw)
            outputs.append(_on_cpu(forward(*args, **kwargs)))
    if not outputs:
        raise DataError("there is nothing to predict: the loader gave no batch")
    return _joined(outputs)


def check_metrics(metrics: Mapping[str, Any]) -> None:
    """Raise `ConfigError` unless every metric has the methods that `evaluate` calls."""
    if not isinstance(metrics, Mapping):
        raise ConfigError(f"must be a mapping from names to metrics, got {type(metrics).__name__}", path="metrics")
    for name, metric in metrics.items():
        if name == "loss":
            raise ConfigError("is the name of the loss itself: give the metric another", path="metrics['loss']")
        missing = [each for each in ("reset", "update", "compute") if not callable(getattr(metric, each, None))]
        if missing:
            raise ConfigError(
                f"{type(metric).__name__} has no {missing[0]}(): pass a torchmetrics metric, or an object with reset, "
                "update(predictions, targets) and compute",
                path=f"metrics[{name!r}]",
            )


def _on_cpu(output: Any) -> Any:
    if isinstance(output, Tensor):
        return output.detach().cpu()
    if isinstance(output, Mapping):
        return {key: _on_cpu(item) for key, item in output.items()}
    if isinstance(output, tuple | list):
        return tuple(_on_cpu(item) for item in output)
    return output


def _joined(outputs: list[Any]) -> Any:
    first: Any = outputs[0]
    if isinstance(first, Tensor):
        return torch.cat(outputs) if first.ndim else torch.stack(outputs)
    if isinstance(first, dict):
        return {key: _joined([output[key] for output in outputs]) for key in first}
    if isinstance(first, tuple):
        return tuple(_joined(list(items)) for items in zip(*outputs, strict=True))
    return outputs
