"""Estimating running statistics anew, under the present weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from typing import Any

import torch
from torch import nn

from mapping_core.errors import DataError, TargetError
from mapping_core.target.buffers import statistics_of
from mapping_core.target.target import Target


def recalibrate(target: Target, run: Callable[[Any], Any], batches: Iterable[Any], limit: int | None) -> int:
    """Set every running statistic to its mean over `batches` and return how many were used.

    `run` runs the model on one batch. Only the modules with statistics are in training mode
    meanwhile, so dropout stays off; afterwards every mode is what it was. The statistics are
    tracked from then on, that is, saved with the model. Raises `TargetError` when there are
    none, and `DataError`, leaving them as they were, when there is no batch.
    """
    found = {path: module for path, module in target.skeleton.named_modules() if statistics_of(module)}
    if not found:
        raise TargetError("recalibrate: the target keeps no running statistics")
    for path, module in found.items():
        if not hasattr(module, "momentum"):
            raise TargetError(
                f"recalibrate: {type(module).__name__} {path!r} has no momentum, so its statistics cannot be made means"
            )
    names = frozenset(
        f"{path}.{leaf}" if path else leaf for path, module in found.items() for leaf in statistics_of(module)
    )
    trees = target.tracked, target.constants
    target.track(names)
    buffers = {name: buffer for name, buffer in target.tracked.as_dict().items() if name in names}
    before = {name: buffer.clone() for name, buffer in buffers.items()}
    modes = [(module, module.training) for module in target.skeleton.modules()]
    used = 0
    try:
        target.skeleton.eval()
        for path, module in found.items():
            module.train()
            _reset(path, buffers)
        with torch.no_grad(), _plain_means(found):
            for batch in islice(batches, limit):
                run(batch)
                used += 1
        if used == 0:
            raise DataError("recalibrate: the loader gave no batch")
    except BaseException:
        for name, buffer in buffers.items():
            buffer.copy_(before[name])
        target.tracked, target.constants = trees
        raise
    finally:
        for module, training in modes:
            module.training = training
    return used


@contextmanager
def _plain_means(norms: Mapping[str, nn.Module]) -> Iterator[None]:
    """Inside, a norm's statistics are the mean over its calls: the momentum of the n-th is 1/n.

    ``momentum=None`` would do so by the counter, which a norm may lack and an InstanceNorm does not keep.
    """
    momenta = {path: norm.momentum for path, norm in norms.items()}
    calls = dict.fromkeys(norms.values(), 0)

    def before(norm: nn.Module, _args: Any) -> None:
        calls[norm] += 1
        norm.momentum = 1 / calls[norm]  # type: ignore[assignment]

    handles = [norm.register_forward_pre_hook(before) for norm in norms.values()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
        for path, norm in norms.items():
            norm.momentum = momenta[path]


def _reset(path: str, buffers: dict[str, torch.Tensor]) -> None:
    prefix = f"{path}." if path else ""
    for leaf, value in (("running_mean", 0), ("running_var", 1), ("num_batches_tracked", 0)):
        if prefix + leaf in buffers:
            buffers[prefix + leaf].fill_(value)
