"""P5: accumulation longer than the loader. Source: packages that then never make a step, and do not say so."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from tests import targets


def test_one_step_an_epoch() -> None:
    """3 batches with accumulate=8 make one step an epoch, that of all 3 at once; `total_steps` knows it."""
    trained, by_hand = targets.mlp(), targets.mlp()
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.5)
    made = targets.trainer_of(trained, optimizer=optimizer, accumulate=8, max_epochs=4)
    assert made.total_steps == 4
    history = made.fit()
    assert [record.step for record in history] == [1, 2, 3, 4]
    own = torch.optim.SGD(by_hand.parameters(), lr=0.5)
    x, y = targets.rows()
    for _ in range(4):
        own.zero_grad()
        functional.cross_entropy(by_hand(x), y).backward()  # type: ignore[no-untyped-call]
        own.step()
    for a, b in zip(trained.parameters(), by_hand.parameters(), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("batches", [None, "stream"])
def test_with_the_default_optimizer(batches: str | None) -> None:
    """The default schedule trains too, whether or not the loader says its length."""
    loader = iter([targets.rows()]) if batches else targets.loader()
    made = targets.trainer_of(None, loader, accumulate=8, max_epochs=1)
    made.fit()
    assert made.step == 1
    assert targets.latent_of(made).any()
