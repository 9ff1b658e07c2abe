"""When how much is pruned; no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mapping_plugin_pruning import Pruning


def plan(config: Pruning, total_steps: int) -> dict[int, float]:
    """What part is to be left after how many optimiser steps, in order.

    >>> from mapping_plugin_pruning import Pruning
    >>> plan(Pruning(keep=0.5, schedule="one_shot", begin=0.25), 100)
    {25: 0.5}
    >>> plan(Pruning(keep=0.25, schedule="iterative", begin=0.0, end=0.5, rounds=2), 100)
    {0: 0.5, 50: 0.25}
    """
    first, last = round(config.begin * total_steps), round(config.end * total_steps)
    if config.schedule == "one_shot":
        return {first: config.keep}
    if config.schedule == "iterative":
        apart = (last - first) / max(1, config.rounds - 1)
        return {
            first + round(index * apart): config.keep ** ((index + 1) / config.rounds) for index in range(config.rounds)
        }
    steps = {step: _cubic(config.keep, (step - first) / (last - first)) for step in range(first, last, config.every)}
    return {**steps, last: config.keep}


def _cubic(keep: float, progress: float) -> float:
    """Sparsity s_f (1 - (1 - t)^3), as the part that is left."""
    return 1 - (1 - keep) * (1 - (1 - progress) ** 3)
