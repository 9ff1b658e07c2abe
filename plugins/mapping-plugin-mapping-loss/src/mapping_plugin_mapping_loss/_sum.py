"""The loss `mapping`: the task and the terms, with fixed or learned weights."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from mapping_core import Loss, LossConfig
from mapping_core.errors import ConfigError
from mapping_core.interfaces.loss import LossStep
from mapping_plugin_mapping_loss import TermConfig
from mapping_plugin_mapping_loss._model import require_latents
from mapping_plugin_mapping_loss._paired import Paired
from mapping_plugin_mapping_loss._term import Term

if TYPE_CHECKING:
    from mapping_core.contexts import LossContext
    from mapping_plugin_mapping_loss import MappingLoss

#: Added to what is weighed by learned coefficients: none grows beyond 1 / FLOOR.
FLOOR = 1e-3


class WeightedSum(Loss):
    """``L_0 + sum of w_i L_i`` over the task L_0 and the terms; without a gradient, L_0 alone.

    What early stopping and a history compare must not move with coefficients or noise, so a
    validation loss is the task's.

    With learned weights: ``exp(-s_0)(L_0 + f) + s_0 + sum of w_i (exp(-s_i)(L_i + f) + s_i)``, s
    trained with the model from 0 on: the uncertainty weighting of Kendall, Gal, Cipolla (2018),
    each term's share kept at w_i. The penalty s_i is what a plain learned weight lacks, which
    sinks to 0. Here ``exp(-s_i)`` settles where it is ``1 / (L_i + f)``: neither 0 nor, for the
    floor f, without bound. The sum may be negative.

    A term with `every` = k is evaluated in each k-th call that has a gradient, the first one
    among them, and counts k times. `log_scales` and the count of calls are in `state_dict`.
    """

    def __init__(
        self, task: Loss, terms: Sequence[Term], weights: Sequence[float], every: Sequence[int], *, learned: bool
    ) -> None:
        super().__init__()
        self.task = task
        self.terms = nn.ModuleList(terms)
        self.weights = tuple(weights)
        self.every = tuple(every)
        self.log_scales = nn.Parameter(torch.zeros(1 + len(terms))) if learned else None
        self._names = _distinct([term.kind for term in terms])
        self._calls = 0
        self._last: dict[str, Tensor] = {}

    def _active(self) -> list[tuple[int, Term]]:
        return [(index, term) for index, term in enumerate(self.terms) if not term.inert]  # type: ignore[misc]

    @property
    def forward_passes(self) -> float:
        """Forward passes of the target that a training step costs on top of its own, on average."""
        active = self._active()
        shared = _share_of_steps([self.every[index] for index, term in active if term.needs_reference])
        return shared + sum(term.own_passes / self.every[index] for index, term in active)

    def forward(self, step: LossStep) -> Tensor:
        task: Tensor = self.task(step)
        if not torch.is_grad_enabled():
            return task
        total = self._weighed(0, task, 1.0)
        due = [(index, term) for index, term in self._active() if self._calls % self.every[index] == 0]
        paired = Paired(step, "mapping", twice=any(term.twice for _, term in due))
        self._last["task_loss"] = task.detach()
        for index, term in due:
            value = term.measure(step, paired)
            total = total + self._weighed(1 + index, value, self.weights[index] * self.every[index])
            self._last[self._names[index]] = value.detach()
        self._calls += 1
        return total

    def _weighed(self, place: int, value: Tensor, weight: float) -> Tensor:
        if self.log_scales is None:
            return weight * value
        scale = self.log_scales[place]
        return weight * ((-scale).exp() * (value + FLOOR) + scale)

    def items(self, step: LossStep) -> int:
        return self.task.items(step)

    def metrics(self, step: LossStep) -> Mapping[str, Tensor | float]:
        """The task's; in training also each term as last evaluated, and what learned weights have become."""
        metrics = dict(self.task.metrics(step))
        if not torch.is_grad_enabled():
            return metrics
        if self.log_scales is not None:
            learned = (-self.log_scales.detach()).exp()
            metrics |= {f"{self._names[i]}_weight": self.weights[i] * learned[1 + i] for i, _ in self._active()}
        return {**metrics, **self._last}

    def get_extra_state(self) -> Tensor:
        return torch.tensor(self._calls)

    def set_extra_state(self, state: Tensor) -> None:
        self._calls = int(state)


def build_sum(config: MappingLoss, context: LossContext) -> WeightedSum:
    """Build `mapping` from its configuration; raises `ConfigError` for what cannot be a term."""
    require_latents(context.model, config.name)
    terms, weights, every = [], [], []
    for given in (config.task, *config.terms):
        if not isinstance(given, LossConfig):
            raise ConfigError(f"{given!r} is a name still: pass what holds it through Registry.resolve", path="loss")
    for given in config.terms:
        if not isinstance(given, TermConfig):
            raise ConfigError(
                f"loss {given.name!r} cannot be a term of 'mapping': use 'stability', 'smoothness' or 'alignment', "  # type: ignore[union-attr]
                "or make it the task",
                path="loss.terms",
            )
        term = given.build(context)
        assert isinstance(term, Term)
        terms.append(term)
        weights.append(given.weight)
        every.append(given.every)
    assert isinstance(config.task, LossConfig)
    if isinstance(config.task, TermConfig) or type(config.task) is type(config):
        raise ConfigError(f"the task of loss 'mapping' cannot be {config.task.name!r}", path="loss.task")
    return WeightedSum(config.task.build(context), terms, weights, every, learned=config.learned)


def _distinct(names: Sequence[str]) -> list[str]:
    """Names with a number where one comes again: stability, stability_2."""
    seen: Counter[str] = Counter()
    made = []
    for name in names:
        seen[name] += 1
        made.append(name if seen[name] == 1 else f"{name}_{seen[name]}")
    return made


def _share_of_steps(every: Sequence[int]) -> float:
    """In which share of steps at least one of these is due; exact over their common period."""
    period = math.lcm(*every) if every else 1
    return sum(any(step % each == 0 for each in every) for step in range(period)) / period
