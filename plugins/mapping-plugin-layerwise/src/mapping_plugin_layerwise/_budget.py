"""Dividing a budget among layers."""

from __future__ import annotations

from collections.abc import Sequence

from mapping_core.errors import BudgetError


def divide_evenly(budget: int, capacities: Sequence[int]) -> list[int]:
    """Divide `budget` into equal shares, each at least 1 and at most its capacity; they sum to `budget`.

    What a small layer cannot take is divided among the others. Where it does not come out
    even, larger layers get one more, and among equal ones earlier ones.

    >>> divide_evenly(20, [4, 100, 100])
    [4, 8, 8]
    >>> divide_evenly(8, [10, 10, 10])
    [3, 3, 2]
    """
    if budget < len(capacities):
        raise BudgetError(
            f"latent_dim={budget} is less than the target's {len(capacities)} layers, and strategy 'layerwise' needs "
            "at least one number a layer: raise latent_dim, or use strategy='slvt'"
        )
    if budget > sum(capacities):
        raise BudgetError(f"latent_dim={budget} is more than the layers' {sum(capacities)} weights")
    shares = [0] * len(capacities)
    left = budget
    # Smallest capacity first: whoever is full leaves the rest to those still to come.
    order = sorted(range(len(capacities)), key=lambda index: (capacities[index], -index))
    for position, index in enumerate(order):
        shares[index] = min(capacities[index], left // (len(order) - position))
        left -= shares[index]
    return shares
