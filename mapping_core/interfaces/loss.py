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

    def per_sample(self, step: LossStep) -> Tensor | None:
        """What each sample [N] adds to the sum over all items: together ``forward(step) * items(step)``.

        None, as here, says that the loss is no sum over samples. A jump is then judged on whole
        batches, and no samples can be chosen for the backward pass.
        """
        return None

    def scores(self, step: LossStep) -> Tensor | None:
        """How much each sample's gradient may weigh, [N], none negative: what samples are chosen by.

        By default its loss. The choice is unbiased whatever the scores; good ones lower its variance.
        """
        return self.per_sample(step)
