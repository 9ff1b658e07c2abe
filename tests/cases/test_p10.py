"""P10: a latent larger than the weights. Source: packages that accept it, and train more numbers than weights."""

from __future__ import annotations

import pytest
from torch import nn

from mapping_core import BudgetError, MappingModel
from tests import targets


def test_more_numbers_than_weights() -> None:
    """256 numbers for 10 weights are refused with both numbers and the largest that makes sense."""
    with pytest.raises(BudgetError, match=r"latent_dim=256 is more than the target's 10 mapped weights: .*<= 10") as e:
        MappingModel(nn.Linear(4, 2), 256)
    assert "\n" not in str(e.value)


@pytest.mark.parametrize("strategy", ["slvt", "layerwise"])
def test_as_many_as_weights(strategy: str) -> None:
    """As many numbers as weights are the most that is allowed, and one more is refused."""
    assert MappingModel(targets.mlp(), 83, strategy).latent_dim == 83
    with pytest.raises(BudgetError, match="latent_dim=84 is more than the target's 83 mapped weights"):
        MappingModel(targets.mlp(), 84, strategy)


def test_only_what_is_mapped_counts() -> None:
    """Frozen weights do not count; directly trained ones count on both sides; a tie counts once."""
    with pytest.raises(BudgetError, match=r"latent_dim=28 is more than the target's 27 mapped weights"):
        MappingModel(targets.mlp(), 28, frozen="0")
    with pytest.raises(
        BudgetError, match=r"latent_dim=84 is more than the target's 56 mapped weights and 27 directly trained.*<= 83"
    ):
        MappingModel(targets.mlp(), 84, trained="2")
    with pytest.raises(BudgetError, match="latent_dim=49 is more than the target's 48 mapped weights"):
        MappingModel(targets.Tied(), 49)


def test_nothing_left_for_the_latent() -> None:
    """A budget that direct training uses up is refused with the numbers."""
    for latent_dim in (5, 27):
        with pytest.raises(BudgetError, match=f"latent_dim={latent_dim} counts what trains directly too, .* is 27"):
            MappingModel(targets.mlp(), latent_dim, trained="2")
    assert MappingModel(targets.mlp(), 29, trained="2").latent.numel() == 2
