"""Fewer backward passes: samples chosen by importance, and weighted so that the gradient stays unbiased.

Katharopoulos and Fleuret, "Not All Samples Are Created Equal: Deep Learning with Importance Sampling" (ICML 2018).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from attrs import define
from torch import Tensor, nn

from mapping_core.errors import ConfigError, DataError
from mapping_core.random import RandomStream
from mapping_core.training.batches import Batch, checked
from mapping_core.training.modes import all_modules
from mapping_core.training.steps import forward_step

if TYPE_CHECKING:
    from mapping_core.training.trainer import MappingTrainer

#: Added to each score, in units of their mean: a sample that is well predicted now is still seen at times.
_FLOOR = 0.3
_CHOICE = 0x63686F69  # the purpose of the draws that choose


@define(frozen=True, kw_only=True, eq=False)
class Choice:
    """The samples kept of a batch: their indices [b], the probability [b] each was kept with, and the gain.

    `gain` is min(1 + CV^2, 1 / keep) with the coefficient of variation CV of the scores: how many samples
    that are not chosen a chosen one is worth.
    """

    index: Tensor
    probabilities: Tensor
    gain: float


@torch.no_grad()
def choose(scores: Tensor, keep: float, uniform: float) -> Choice:
    """Keep a share `keep` of the samples with these scores [N], by systematic sampling from one `uniform` number.

    A sample is kept with probability ``min(1, c q)``, q being its score plus 0.3 times the mean score, and c
    such that ``round(keep * N)`` are kept in all, exactly.

    >>> choice = choose(torch.tensor([0.0, 0.0, 0.0, 8.0]), keep=0.5, uniform=0.5)
    >>> choice.index.tolist(), round(float(choice.probabilities[1]), 2)
    ([1, 3], 1.0)
    """
    scores = scores.double()
    count = len(scores)
    wanted = min(count, max(1, round(keep * count)))
    mean = float(scores.mean())
    if mean > 0.0:
        weights, variation = scores + _FLOOR * mean, float(scores.var(correction=0)) / mean**2
    else:
        weights, variation = torch.ones_like(scores), 0.0
    probabilities = _inclusion(weights, wanted)
    marks = probabilities.cumsum(0) + uniform
    before = torch.cat([torch.full_like(marks[:1], uniform), marks[:-1]])
    index = (marks.floor() > before.floor()).nonzero().reshape(-1)
    return Choice(index=index, probabilities=probabilities[index], gain=min(1.0 + variation, 1.0 / keep))


def _inclusion(weights: Tensor, wanted: int) -> Tensor:
    """Probabilities min(1, c w) that sum to `wanted`."""
    ordered = weights.sort(descending=True).values
    rest = ordered.flip(0).cumsum(0).flip(0)  # the sum of a weight and all that are smaller
    # With the k largest certain, c = (wanted - k) / rest[k]; k is the first for which none beyond them exceeds 1.
    ahead = torch.arange(len(weights), dtype=weights.dtype, device=weights.device)
    scale = (wanted - ahead) / rest
    certain = int((scale * ordered > 1.0).long().sum())
    return (weights * scale[min(certain, len(weights) - 1)]).clamp(max=1.0)


@define(frozen=True, kw_only=True, eq=False)
class Selected:
    """A batch after its choice: the loss with a gradient, and what the whole batch says without one."""

    loss: Tensor
    value: Tensor
    items: int
    metrics: Mapping[str, Tensor | float]
    gain: float


class Selection:
    """Scores a trainer's batches forward, and makes the gradient's pass of a share of each."""

    def __init__(self, trainer: MappingTrainer, forward: Callable[..., Any], *, seed: int, rank: int) -> None:
        self._trainer, self._forward = trainer, forward
        self._seed, self._rank = seed, rank
        self._checked = False

    def run(self, raw: Any, keep: float) -> Selected:
        """One batch, of which `keep` gets a gradient: that of `loss` has the whole batch's as its expectation."""
        trainer = self._trainer
        batch = checked(trainer.batch_adapter(raw))
        if not self._checked:
            _check_independent(trainer.model)
            self._checked = True
        with torch.no_grad():
            step = forward_step(trainer.model, self._forward, batch)
            parts, scores = trainer.loss.per_sample(step), trainer.loss.scores(step)
            if parts is None or scores is None:
                raise ConfigError(
                    f"loss {type(trainer.loss).__name__} gives no losses of single samples, so none can be chosen: "
                    "use a policy that does not sample, or write per_sample",
                    path="prediction.policy",
                )
            items, metrics = trainer.loss.items(step), trainer.loss.metrics(step)
            value = (parts.sum() / max(1, items)).detach()
        if items == 0 or not bool(torch.isfinite(value)):
            return Selected(loss=value, value=value, items=items, metrics=metrics, gain=1.0)
        choice = choose(scores, keep, self._uniform())
        part = forward_step(trainer.model, self._forward, taken(batch, choice.index, len(scores)))
        own = trainer.loss.per_sample(part)
        assert own is not None
        loss = (own / choice.probabilities.to(own)).sum() / items
        return Selected(loss=loss, value=value, items=items, metrics=metrics, gain=choice.gain)

    def _uniform(self) -> float:
        """A number of this batch and rank alone, so that a run that goes on draws what it would have drawn."""
        trainer = self._trainer
        stream = RandomStream(self._seed, stream=trainer.epoch % 2**32, purpose=_CHOICE)
        place = 2 * (trainer.batch * 4096 + self._rank)
        return float(stream.words(1, start=place)) / 2.0**32


def taken(batch: Batch, index: Tensor, count: int) -> Batch:
    """The samples `index` of a batch of `count`: of every tensor whose first dimension is as long; the rest stays.

    >>> taken(Batch((torch.arange(3.0),), {"scale": 2.0}, torch.arange(3)), torch.tensor([2, 0]), 3)
    Batch(args=(tensor([2., 0.]),), kwargs={'scale': 2.0}, targets=tensor([2, 0]))
    """

    def take(value: Any) -> Any:
        if isinstance(value, Tensor):
            return value[index.to(value.device)] if value.ndim and len(value) == count else value
        if isinstance(value, Mapping):
            return {key: take(item) for key, item in value.items()}
        if type(value) in (tuple, list):
            return type(value)(take(item) for item in value)
        if value is None or isinstance(value, bool | int | float | str):
            return value
        raise DataError(
            f"a batch holds a {type(value).__name__}, of which no samples can be taken: sampling needs tensors"
        )

    return Batch(take(batch.args), take(dict(batch.kwargs)), take(batch.targets))


def _check_independent(model: nn.Module) -> None:
    """Refuse models in which samples of a batch see one another: part of a batch then has another gradient."""
    for module in all_modules(model):
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.training:
            raise ConfigError(
                f"samples cannot be chosen in a model with {type(module).__name__} in training mode, which mixes "
                "them: use buffers='frozen' with estimated statistics, a norm within samples, or a policy without "
                "sampling",
                path="prediction.policy",
            )
