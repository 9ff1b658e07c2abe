"""Means over items, kept on the device until they are read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor


class Averages:
    """Item-weighted means of named scalars.

    A batch's mean counts by its items, so a short last batch weighs what it should. Nothing
    waits for the device before `means()`.

    >>> import torch
    >>> averages = Averages()
    >>> averages.add({"loss": torch.tensor(1.0)}, items=3)
    >>> averages.add({"loss": torch.tensor(5.0)}, items=1)
    >>> averages.means()
    {'loss': 2.0}
    """

    def __init__(self) -> None:
        self._sums: dict[str, Tensor | float] = {}
        self._items = 0

    @property
    def items(self) -> int:
        """How many items were added."""
        return self._items

    def add(self, means: Mapping[str, Tensor | float], *, items: int) -> None:
        """Add a batch's means over `items` items; a batch without items says nothing and is left out."""
        if items == 0:
            return
        self._items += items
        for name, value in means.items():
            # In double, since a float32 sum over an epoch loses digits that a metric shows. Numbers that are
            # here already are added by Python, which is several times faster; others stay where they are.
            if isinstance(value, Tensor):
                value = value.detach()
                value = float(value) if value.device.type == "cpu" else value.double()
            self._sums[name] = self._sums.get(name, 0.0) + value * items

    def state_dict(self) -> dict[str, Any]:
        """The sums so far, which `load_state_dict` takes back."""
        return {"items": self._items, "sums": dict(self._sums)}

    def load_state_dict(self, state: dict[str, Any], device: torch.device) -> None:
        """Go on from the sums of a `state_dict`."""
        self._items = state["items"]
        self._sums = {
            name: total.to(device) if isinstance(total, Tensor) else total for name, total in state["sums"].items()
        }

    def merge(self, others: Iterable[dict[str, Any]]) -> None:
        """Become the sum of several `state_dict`s, such as one a rank."""
        self._items, self._sums = 0, {}
        for state in others:
            self._items += state["items"]
            for name, total in state["sums"].items():
                self._sums[name] = self._sums.get(name, 0.0) + float(total)

    def means(self) -> dict[str, float]:
        """The means so far; empty when nothing was added."""
        return {name: float(total) / self._items for name, total in self._sums.items()}
