"""D11: scheduler and mixed precision. Source: Lightning issue 16228 (a skipped step still moves the scheduler)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from mapping_core import Callback, MappingModel, NonFiniteError
from tests import targets


class Records(Callback):
    """Keeps every batch's record, and the scheduler's count after it."""

    def __init__(self, scheduler: torch.optim.lr_scheduler.LRScheduler) -> None:
        self.scheduler = scheduler
        self.seen: list[tuple[int, bool, int]] = []

    def on_batch_end(self, trainer: Any, record: Any) -> None:
        self.seen.append((record.step, record.stepped, self.scheduler.last_epoch))


def poisoned(model: MappingModel, *steps: int) -> None:
    """Make the gradient infinite at these backward passes, from 0."""
    count = iter(range(1000))
    hook = model.latent.register_hook  # untyped
    hook(lambda grad: grad * float("inf") if next(count) in steps else grad)  # type: ignore[no-untyped-call]


def test_a_skipped_step_moves_nothing() -> None:
    """Where the scaler finds infinity, neither scheduler, step count nor optimiser moves; its scale falls."""
    model = MappingModel(targets.mlp(), 16)
    poisoned(model, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    records = Records(scheduler)
    made = targets.trainer_of(
        model, optimizer=optimizer, scheduler=scheduler, precision="16-mixed", callbacks=[records]
    )
    made.fit()
    assert records.seen == [(1, True, 1), (2, True, 2), (2, False, 2), (3, True, 3), (4, True, 4), (5, True, 5)]
    assert optimizer.state[model.latent]["step"] == 5
    assert optimizer.param_groups[0]["lr"] == 0.1 * 0.5**5
    assert model.latent_vector().isfinite().all()


def test_the_default_schedule_too() -> None:
    """The schedule of the trainer's own optimiser does not move either: its rates come one window later."""

    class Rates(Callback):
        def __init__(self) -> None:
            self.seen: list[float] = []

        def on_batch_end(self, trainer: Any, record: Any) -> None:
            if record.stepped:
                self.seen.append(record.learning_rate)

    model, rates, plain = MappingModel(targets.mlp(), 16), Rates(), Rates()
    poisoned(model, 0)
    targets.trainer_of(model, precision="16-mixed", callbacks=[rates]).fit()
    targets.trainer_of(precision="16-mixed", callbacks=[plain]).fit()
    assert rates.seen == plain.seen[:5]


def test_infinity_for_ever_ends_the_run() -> None:
    """A gradient that no scale makes finite ends the run after 25 windows, with the weights as they were."""
    model = MappingModel(targets.mlp(), 16)
    poisoned(model, *range(1000))
    with pytest.raises(NonFiniteError, match=r"at every scale, and so for 25 steps in a row: lower learning_rate"):
        targets.trainer_of(model, max_epochs=20, precision="16-mixed").fit()
    assert torch.equal(model.latent_vector(), Tensor([0.0] * 16))
