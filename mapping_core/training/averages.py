"""Means over items, kept on the device until they are read."""

from __future__ import annotations

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
        self._sums: dict[str, Tensor] = {}
        self._items = 0

    @property
    def items(self) -> int:
        """How many items were added."""
        return self._items

    def add(self, means: dict[str, Tensor], *, items: int) -> None:
        """Add a batch's means over `items` items; a batch without items says nothing and is left out."""
        if items == 0:
            return
        self._items += items
        for name, value in means.items():
            # double: a float32 sum over an epoch loses digits that a metric shows.
            weighted = value.detach().double() * items
            self._sums[name] = self._sums[name] + weighted if name in self._sums else weighted

    def means(self) -> dict[str, float]:
        """The means so far; empty when nothing was added."""
        return {name: float(total) / self._items for name, total in self._sums.items()}
