"""D12: the scheduler's steps. Source: accelerate issue 963 (the scheduler steps at batches, or once too little)."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from mapping_core import Callback
from tests import targets


class Rates(Callback):
    """Keeps the rate of each optimiser step."""

    def __init__(self) -> None:
        self.seen: list[float] = []

    def on_batch_end(self, trainer: Any, record: Any) -> None:
        if record.stepped:
            self.seen.append(record.learning_rate)


@pytest.mark.parametrize("batches", [8, 10])
def test_linear_decay_ends_exactly(batches: int) -> None:
    """Linear decay over `total_steps` with 4 batches a step: each rate, and the last one, 0, are exact."""
    model = targets.mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    loader = targets.loader(4 * batches, batch_size=4)
    total = {8: 6, 10: 9}[batches]
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 - step / total)
    rates = Rates()
    made = targets.trainer_of(
        model,
        loader,
        optimizer=optimizer,
        scheduler=scheduler,
        accumulate=4,
        max_epochs=3,
        callbacks=[rates],
    )
    assert made.total_steps == total
    made.fit()
    assert rates.seen == [0.5 * (1.0 - step / total) for step in range(total)]
    assert optimizer.param_groups[0]["lr"] == 0.0


def test_the_default_schedule_ends_at_zero() -> None:
    """The cosine of the trainer's own optimiser ends at 0 after the last step, whatever is accumulated."""
    made = targets.trainer_of(None, targets.loader(40, batch_size=4), accumulate=4, max_epochs=3)
    made.fit()
    assert made.optimizer is not None
    assert made.step == made.total_steps == 9
    assert made.optimizer.param_groups[0]["lr"] == pytest.approx(0.0, abs=1e-12)
