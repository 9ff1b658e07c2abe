"""What a loader yields, and means over it."""

from __future__ import annotations

import warnings
from collections import UserDict, namedtuple
from typing import Any

import pytest
import torch

from mapping_core import DataError
from mapping_core.training.averages import Averages
from mapping_core.training.batches import TARGET_KEYS, Batch, adapt_batch

Pair = namedtuple("Pair", ["x", "y"])


@pytest.mark.parametrize("form", [tuple, list])
def test_sequences(form: Any) -> None:
    """The last of a sequence is the target, all before are positional inputs."""
    batch = adapt_batch(form(["x", "y"]))
    assert (batch.args, batch.kwargs, batch.targets) == (("x",), {}, "y")
    batch = adapt_batch(form(["x1", "x2", "y"]))
    assert (batch.args, batch.kwargs, batch.targets) == (("x1", "x2"), {}, "y")


def test_named_tuple() -> None:
    """A named tuple is a tuple."""
    batch = adapt_batch(Pair(x=1, y=2))
    assert (batch.args, batch.targets) == ((1,), 2)


@pytest.mark.parametrize("key", TARGET_KEYS)
@pytest.mark.parametrize("form", [dict, UserDict])
def test_mappings(key: str, form: Any) -> None:
    """In a mapping the target has one of the usual names, and the rest are keyword inputs."""
    given = form({"input_ids": 1, key: 2, "mask": 3})
    batch = adapt_batch(given)
    assert (batch.args, dict(batch.kwargs), batch.targets) == ((), {"input_ids": 1, "mask": 3}, 2)
    assert set(given) == {"input_ids", key, "mask"}


def test_first_target_key_wins() -> None:
    """With two of the usual names, the first of TARGET_KEYS is the target and the other an input."""
    batch = adapt_batch({"y": 1, "labels": 2})
    assert (batch.targets, dict(batch.kwargs)) == (2, {"y": 1})


def test_a_batch_is_taken_as_it_is() -> None:
    """What is a `Batch` already passes through."""
    batch = Batch((1,), {"a": 2}, 3)
    assert adapt_batch(batch) is batch


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (torch.zeros(2), "the loader gave Tensor: change the data set, or pass batch_adapter="),
        (("x",), "the loader gave tuple of length 1"),
        ([], "the loader gave list of length 0"),
        (None, "gave NoneType"),
        ({"x": 1, "mask": 2}, "keys x, mask has none of labels, label, targets, target, y"),
    ],
)
def test_other_forms(given: Any, message: str) -> None:
    """Anything else is refused with what came and what to do."""
    with pytest.raises(DataError, match=message):
        adapt_batch(given)


def test_averages_weigh_by_items() -> None:
    """A mean over batches of 4, 4 and 2 is the mean over all 10."""
    values = torch.randn(10)
    averages = Averages()
    for part in torch.split(values, 4):
        averages.add({"loss": part.mean()}, items=len(part))
    assert averages.items == 10
    assert averages.means()["loss"] == pytest.approx(float(values.double().mean()), abs=1e-7)


def test_averages_ignore_empty_batches() -> None:
    """A batch without items, whose mean is NaN, changes nothing; nothing added is no mean."""
    averages = Averages()
    averages.add({"loss": torch.tensor(float("nan"))}, items=0)
    assert averages.means() == {}
    averages.add({"loss": torch.tensor(2.0)}, items=3)
    assert averages.means() == {"loss": 2.0}


def test_averages_keep_digits() -> None:
    """A long sum loses no digits that a float32 sum would."""
    averages = Averages()
    averages.add({"loss": torch.tensor(1.0)}, items=2**25)
    averages.add({"loss": torch.tensor(2.0)}, items=1)
    assert averages.means()["loss"] > 1.0


def test_averages_keep_no_graph() -> None:
    """Values with a gradient are detached, without a warning."""
    averages = Averages()
    value = torch.tensor(1.0, requires_grad=True) * 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        averages.add({"loss": value}, items=1)
    assert averages.means() == {"loss": 2.0}
    elsewhere = Averages()
    elsewhere.add({"loss": value.to("meta")}, items=1)
    (total,) = elsewhere.state_dict()["sums"].values()
    assert not total.requires_grad
