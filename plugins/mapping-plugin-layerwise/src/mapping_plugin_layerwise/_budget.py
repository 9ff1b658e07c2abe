"""Dividing a budget among parts: layers or groups."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from mapping_core.errors import BudgetError

#: What a part's share follows, from its weights.
FOLLOWS: dict[str, Callable[[int], float]] = {"equal": lambda _: 1.0, "sqrt": math.sqrt, "proportional": float}


def shares(
    budget: int, capacities: Mapping[str, int], rule: str, numbers: Mapping[str, int], *, strategy: str, parts: str
) -> list[int]:
    """Divide `budget` among the parts in `capacities` (name -> weights): `numbers` as they are, the rest by `rule`.

    Raises `BudgetError`, with `strategy` and what it calls its `parts`, where that is not possible.
    """
    for name, number in numbers.items():
        if number > capacities[name]:
            raise BudgetError(
                f"strategy {strategy!r}: {name!r} has {capacities[name]:,} weights, and a budget of {number:,} numbers"
            )
    free = [name for name in capacities if name not in numbers]
    rest = budget - sum(numbers.values())
    if numbers and (rest < len(free) if free else rest != 0):
        raise BudgetError(
            f"strategy {strategy!r}: the numbers in budget sum to {budget - rest:,} with latent_dim={budget:,}, which "
            + (f"leaves {rest:,} for {len(free)} other {parts}" if free else "must be the same")
        )
    if rest < len(free):
        raise BudgetError(
            f"latent_dim={budget} is less than the target's {len(free)} {parts}, and strategy {strategy!r} needs at "
            f"least one number a {parts.removesuffix('s')}: raise latent_dim, or use strategy='slvt'"
        )
    own = [capacities[name] for name in free]
    if rest > sum(own):
        raise BudgetError(f"latent_dim={budget:,} leaves {rest:,} numbers for {parts} of {sum(own):,} weights")
    divided = dict(zip(free, divide(rest, own, [FOLLOWS[rule](capacity) for capacity in own]), strict=True))
    return [numbers[name] if name in numbers else divided[name] for name in capacities]


def divide(budget: int, capacities: Sequence[int], follows: Sequence[float]) -> list[int]:
    """Divide `budget` in proportion to `follows`, each share at least 1 and at most its capacity; they sum to it.

    What a small part cannot take is divided among the others. Where it does not come out
    even, the one that lacks most gets one more; of equals a larger one, then an earlier one.

    >>> divide(20, [4, 100, 100], [1, 1, 1])
    [4, 8, 8]
    >>> divide(12, [9, 100, 25], [3, 10, 5])
    [2, 7, 3]
    """
    level = _level(budget, capacities, follows)
    exact = [_clamped(level * each, most) for each, most in zip(follows, capacities, strict=True)]
    made = [int(share) for share in exact]
    order = sorted(range(len(made)), key=lambda index: (made[index] - exact[index], -capacities[index], index))
    for index in order:
        if sum(made) == budget:
            break
        made[index] += made[index] < capacities[index]
    return made


def _clamped(share: float, capacity: int) -> float:
    return min(max(share, 1.0), float(capacity))


def _level(budget: int, capacities: Sequence[int], follows: Sequence[float]) -> float:
    """The largest level at which the clamped shares, level x follows, do not sum to more than the budget."""
    low, high = 0.0, max((most / each for each, most in zip(follows, capacities, strict=True)), default=0.0)
    while low < (middle := (low + high) / 2) < high:
        total = sum(_clamped(middle * each, most) for each, most in zip(follows, capacities, strict=True))
        low, high = (middle, high) if total <= budget else (low, middle)
    return low
