"""Dividing a budget among layers."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mapping_core import BudgetError
from mapping_plugin_layerwise._budget import divide_evenly

CAPACITIES = st.lists(st.integers(1, 10_000), min_size=1, max_size=40)


@st.composite
def problems(draw: st.DrawFn) -> tuple[int, list[int]]:
    """Draw capacities, and a budget that fits them."""
    capacities = draw(CAPACITIES)
    return draw(st.integers(len(capacities), sum(capacities))), capacities


@given(problems())
def test_sum_and_bounds(problem: tuple[int, list[int]]) -> None:
    """The shares sum to the budget, and each is at least 1 and at most its capacity."""
    budget, capacities = problem
    shares = divide_evenly(budget, capacities)
    assert sum(shares) == budget
    assert len(shares) == len(capacities)
    assert all(1 <= share <= capacity for share, capacity in zip(shares, capacities, strict=True))


@given(problems())
def test_as_even_as_the_capacities_allow(problem: tuple[int, list[int]]) -> None:
    """Layers that are not full differ by at most one, and no full layer has more than they."""
    budget, capacities = problem
    shares = divide_evenly(budget, capacities)
    free = [share for share, capacity in zip(shares, capacities, strict=True) if share < capacity]
    full = [share for share, capacity in zip(shares, capacities, strict=True) if share == capacity]
    if free:
        assert max(free) - min(free) <= 1
        assert max(full, default=0) <= min(free) + 1


@given(st.integers(1, 1000), st.integers(1, 30))
def test_earlier_layers_get_the_rest(budget: int, layers: int) -> None:
    """Where equal layers do not divide the budget, the first ones get one more."""
    budget += layers
    share, rest = divmod(budget, layers)
    assert divide_evenly(budget, [2000] * layers) == [share + 1] * rest + [share] * (layers - rest)


@given(problems())
def test_larger_layers_get_the_rest(problem: tuple[int, list[int]]) -> None:
    """A larger layer never gets less than a smaller one."""
    budget, capacities = problem
    pairs = sorted(zip(capacities, divide_evenly(budget, capacities), strict=True))
    by_capacity = {capacity: [share for other, share in pairs if other == capacity] for capacity, _ in pairs}
    ordered = list(by_capacity.values())
    assert all(max(small) <= min(large) for small, large in itertools.pairwise(ordered))


@given(problems())
def test_the_order_of_layers_changes_at_most_the_rest(problem: tuple[int, list[int]]) -> None:
    """Reversing the layers changes a layer's share by at most one."""
    budget, capacities = problem
    forward, backward = divide_evenly(budget, capacities), divide_evenly(budget, capacities[::-1])[::-1]
    assert all(abs(one - two) <= 1 for one, two in zip(forward, backward, strict=True))


@given(CAPACITIES)
def test_extremes(capacities: list[int]) -> None:
    """The smallest budget is one a layer, the largest fills all; outside both, an error says which."""
    assert divide_evenly(len(capacities), capacities) == [1] * len(capacities)
    assert divide_evenly(sum(capacities), capacities) == capacities
    with pytest.raises(BudgetError, match=r"is less than the target's .* layers.*use strategy='slvt'"):
        divide_evenly(len(capacities) - 1, capacities)
    with pytest.raises(BudgetError, match="is more than the layers'"):
        divide_evenly(sum(capacities) + 1, capacities)
