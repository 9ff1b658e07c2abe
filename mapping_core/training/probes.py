"""Losses of the same training samples, under the same noise, at several places."""

from __future__ import annotations

import copy
import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from attrs import define
from torch import Tensor
from torch.utils.data import DataLoader

from mapping_core.random import RandomStream
from mapping_core.training.agreement import summed
from mapping_core.training.engine import placed
from mapping_core.training.randomness import random_state, set_random_state
from mapping_core.training.sampling import EpochBatches, with_own_order
from mapping_core.training.snapshot import changing
from mapping_core.training.steps import forward_step

if TYPE_CHECKING:
    from lightning_fabric import Fabric

    from mapping_core.training.trainer import MappingTrainer

_PROBE = 0x70726F62  # the purpose of the draws that choose samples to probe


class ProbeBatches:
    """Where probes get their batches: drawn anew from the training data, in an order that training does not see.

    Drawing needs a loader whose samples can be taken by their index, or a list of batches. Of any other,
    the batches of the last steps are kept and probed; a run that is resumed has none at first.
    """

    def __init__(self, loader: Iterable[Any], *, seed: int, rank: int = 0, world_size: int = 1) -> None:
        self._seed, self._rank = seed ^ _PROBE, rank
        twin = with_own_order(loader, seed=self._seed, rank=rank, world_size=world_size)
        self._twin: Any = None
        self._list = loader if isinstance(loader, Sequence) else None
        if isinstance(twin, DataLoader) and isinstance(twin.batch_sampler, EpochBatches):
            self._twin = twin if twin is not loader else copy.copy(twin)
            sampler = copy.copy(twin.batch_sampler)
            sampler.shuffle = True
            # No workers: they would be started for each probe.
            vars(self._twin).update(batch_sampler=sampler, num_workers=0, prefetch_factor=None, timeout=0)
            vars(self._twin).update(persistent_workers=False, _iterator=None)
        self._recent: deque[Any] = deque(maxlen=64)

    @property
    def fresh(self) -> bool:
        """Whether they are drawn anew."""
        return self._twin is not None or self._list is not None

    def note(self, raw: Any) -> None:
        """Keep a batch of a step, where there is no other way."""
        if not self.fresh:
            self._recent.append(raw)

    def draw(self, count: int, attempt: int) -> list[Any]:
        """`count` batches for the probe number `attempt`, or as many as there are."""
        if self._twin is not None:
            self._twin.batch_sampler.epoch = attempt % 2**32
            batches = iter(self._twin)
            return [batch for _, batch in zip(range(count), batches, strict=False)]
        if self._list is not None:
            order = RandomStream(self._seed, stream=attempt % 2**32, purpose=_PROBE).words(len(self._list)).argsort()
            return [self._list[index] for index in order[:count].tolist()]
        return list(self._recent)[-count:]


@define(frozen=True, kw_only=True, eq=False)
class Probe:
    """The parts [n] of samples (of batches, where a loss has none of samples) in a loss that is a mean over `items`."""

    parts: Tensor
    items: int


class Prober:
    """Evaluates a trainer's loss as training does, and leaves no trace."""

    def __init__(self, trainer: MappingTrainer, fabric: Fabric, forward: Callable[..., Any]) -> None:
        self._trainer, self._fabric, self._forward = trainer, fabric, forward

    @torch.no_grad()
    def losses(self, batches: Sequence[Any], places: Sequence[Callable[[], None]]) -> list[Probe]:
        """The losses of `batches` at each of `places`, which go there; what trains stays at the last one.

        Random numbers are the same at each place. Buffers and generators are put back.
        """
        trainer = self._trainer
        trained = {id(each) for each in trainer.model.parameters()}
        kept = [(each, each.clone()) for each in changing(trainer.model) if id(each) not in trained]
        random = random_state(trainer.train_loader)
        probes = []
        try:
            for go in places:
                go()
                set_random_state(random, trainer.train_loader)
                probes.append(self._probe(batches))
                for tensor, value in kept:
                    tensor.copy_(value)
        finally:
            for tensor, value in kept:
                tensor.copy_(value)
            set_random_state(random, trainer.train_loader)
        return probes

    def _probe(self, batches: Sequence[Any]) -> Probe:
        trainer, items = self._trainer, 0
        parts: list[Tensor] = []
        for raw in batches:
            batch = trainer.batch_adapter(placed(self._fabric, raw))
            step = forward_step(trainer.model, self._forward, batch)
            own, count = trainer.loss.per_sample(step), trainer.loss.items(step)
            if own is None:
                own = (trainer.loss(step) * count).reshape(1)
            if count:
                parts.append(own.double())
                items += count
        return Probe(parts=torch.cat(parts) if parts else torch.zeros(0, dtype=torch.float64), items=items)


@define(frozen=True, kw_only=True)
class Comparison:
    """Two probes of the same samples, over all ranks: mean losses, the mean of the differences and its error."""

    before: float
    after: float
    difference: float
    error: float


def compare(fabric: Fabric, before: Probe, after: Probe) -> Comparison:
    """Paired differences, as means an item; what is not finite stays so, and so does an error of too few samples."""
    change = after.parts - before.parts
    sums = [float(each.sum()) for each in (before.parts, after.parts, change, change.square())]
    count, items, first, second, total, squares = summed(fabric, [float(len(change)), float(before.items), *sums])
    if count < 2 or not items:
        return Comparison(before=math.nan, after=math.nan, difference=math.nan, error=math.inf)
    variance = max(0.0, squares - total * total / count) / (count - 1) if math.isfinite(squares) else math.inf
    return Comparison(
        before=first / items,
        after=second / items,
        difference=total / items,
        error=math.sqrt(variance * count) / items,
    )
