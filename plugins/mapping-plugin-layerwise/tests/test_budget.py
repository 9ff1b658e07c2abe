"""Dividing a budget among parts."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mapping_core import BudgetError
from mapping_plugin_layerwise._budget import FOLLOWS, divide, shares

CAPACITIES = st.lists(st.integers(1, 10_000), min_size=1, max_size=40)


@st.composite
def problems(draw: st.DrawFn) -> tuple[int, list[int]]:
    """Draw capacities, and a budget that fits them."""
    capacities = draw(CAPACITIES)
    return draw(st.integers(len(capacities), sum(capacities))), capacities


def divided(budget: int, capacities: list[int], rule: str = "equal") -> list[int]:
    """Divide by a rule."""
    return divide(budget, capacities, [FOLLOWS[rule](capacity) for capacity in capacities])


def by_hand(budget: int, capacities: list[int]) -> list[int]:
    """Equal shares the other way: smallest capacity first, whoever is full leaves the rest to those still to come."""
    made, left = [0] * len(capacities), budget
    order = sorted(range(len(capacities)), key=lambda index: (capacities[index], -index))
    for position, index in enumerate(order):
        made[index] = min(capacities[index], left // (len(order) - position))
        left -= made[index]
    return made


@given(problems())
def test_equal_shares_are_those_of_older_files(problem: tuple[int, list[int]]) -> None:
    """Equal shares are what they were when they were divided one after the other; files depend on it."""
    assert divided(*problem) == by_hand(*problem)


@pytest.mark.parametrize("rule", FOLLOWS)
@given(problem=problems())
def test_sum_and_bounds(rule: str, problem: tuple[int, list[int]]) -> None:
    """The shares sum to the budget, and each is at least 1 and at most its capacity."""
    budget, capacities = problem
    made = divided(budget, capacities, rule)
    assert sum(made) == budget
    assert len(made) == len(capacities)
    assert all(1 <= share <= capacity for share, capacity in zip(made, capacities, strict=True))


@pytest.mark.parametrize("rule", FOLLOWS)
@given(problem=problems())
def test_shares_follow_the_rule(rule: str, problem: tuple[int, list[int]]) -> None:
    """Shares strictly between the bounds stand in the ratio of the rule, to within one number."""
    budget, capacities = problem
    pairs = [
        (share, FOLLOWS[rule](capacity))
        for share, capacity in zip(divided(budget, capacities, rule), capacities, strict=True)
        if 2 < share < capacity - 1
    ]
    for (one, first), (two, second) in itertools.pairwise(pairs):
        assert (one - 1) / first <= (two + 1) / second
        assert (two - 1) / second <= (one + 1) / first


@pytest.mark.parametrize("rule", FOLLOWS)
@given(problem=problems())
def test_larger_parts_get_the_rest(rule: str, problem: tuple[int, list[int]]) -> None:
    """A larger part never gets less than a smaller one."""
    budget, capacities = problem
    pairs = sorted(zip(capacities, divided(budget, capacities, rule), strict=True))
    by_capacity = {capacity: [share for other, share in pairs if other == capacity] for capacity, _ in pairs}
    ordered = list(by_capacity.values())
    assert all(max(small) <= min(large) for small, large in itertools.pairwise(ordered))


@given(st.integers(1, 1000), st.integers(1, 30))
def test_earlier_parts_get_the_rest(budget: int, parts: int) -> None:
    """Where equal parts do not divide the budget, the first ones get one more."""
    budget += parts
    share, rest = divmod(budget, parts)
    assert divided(budget, [2000] * parts) == [share + 1] * rest + [share] * (parts - rest)


@given(CAPACITIES)
def test_extremes(capacities: list[int]) -> None:
    """The smallest budget is one a part, the largest fills all; outside both, an error says which."""
    named = {str(index): capacity for index, capacity in enumerate(capacities)}

    def of(budget: int) -> list[int]:
        return shares(budget, named, "equal", {}, strategy="layerwise", parts="layers")

    assert of(len(capacities)) == [1] * len(capacities)
    assert of(sum(capacities)) == capacities
    with pytest.raises(
        BudgetError, match=r"is less than the target's .* layers.*one number a layer.*use strategy='slvt'"
    ):
        of(len(capacities) - 1)
    with pytest.raises(BudgetError, match="numbers for layers of"):
        of(sum(capacities) + 1)


@pytest.mark.parametrize(
    ("budget", "numbers", "made"),
    [(20, {"b": 7}, [7, 7, 6]), (20, {"a": 10, "b": 1, "c": 9}, [10, 1, 9]), (12, {"a": 10}, [10, 1, 1])],
)
def test_numbers_given(budget: int, numbers: dict[str, int], made: list[int]) -> None:
    """Numbers that are given are kept, and the other parts share the rest."""
    capacities = {"a": 10, "b": 20, "c": 9}
    assert shares(budget, capacities, "equal", numbers, strategy="grouped", parts="groups") == made


@pytest.mark.parametrize(
    ("budget", "numbers", "message"),
    [
        (20, {"a": 11}, "'a' has 10 weights, and a budget of 11 numbers"),
        (20, {"a": 10, "b": 10}, r"sum to 20 with latent_dim=20, which leaves 0 for 1 other groups"),
        (20, {"a": 9, "b": 2, "c": 3}, r"sum to 14 with latent_dim=20, which must be the same"),
        (25, {"b": 1}, "latent_dim=25 leaves 24 numbers for groups of 19 weights"),
    ],
)
def test_numbers_that_do_not_fit(budget: int, numbers: dict[str, int], message: str) -> None:
    """Numbers that the parts or `latent_dim` cannot take are an error that says by how much."""
    with pytest.raises(BudgetError, match=message):
        shares(budget, {"a": 10, "b": 20, "c": 9}, "equal", numbers, strategy="grouped", parts="groups")
