"""The loss: what training minimises, and what it reports beside it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from attrs import define
from torch import Tensor, nn


@define(frozen=True, kw_only=True, eq=False)
class LossStep:
    """One forward pass, as a loss sees it.

    `predictions` is whatever the target returned, `targets` what the batch adapter found.
    `latents` holds the latents by name (empty for a model that is not mapped), and
    ``evaluate(latents)`` runs the same inputs under other latents, all weights at once even in a lazy model; running
    statistics stay as they are, and random layers draw anew.
    """

    predictions: Any
    targets: Any
    latents: Mapping[str, Tensor]
    evaluate: Callable[[Mapping[str, Tensor]], Any]


class Loss(nn.Module, ABC):
    """A scalar to minimise, as a mean over the items of a batch.

    A loss may have parameters: coefficients that train with the model. One that needs latents
    says so in its configuration's `build`, with a `ConfigError` for a model that has none.

    Whatever core averages over batches (a validation loss, an accumulated gradient) it
    weights by `items`, so the result is the mean over all items and not over batches.
    """

    @abstractmethod
    def forward(self, step: LossStep) -> Tensor:
        """Return the mean loss over the step's items, a scalar with a gradient."""

    @abstractmethod
    def items(self, step: LossStep) -> int:
        """How many items the mean is over, for instance the samples, or the tokens not ignored."""

    def metrics(self, step: LossStep) -> Mapping[str, Tensor | float]:
        """Further means over the same items to report, by name; no gradient is needed."""
        return {}
