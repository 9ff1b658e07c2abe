"""Losses and gradients that are not finite: what each policy makes of them, and what they never touch."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mapping_core import Callback, MappingModel, MappingTrainer, NonFiniteError
from tests import targets


def model() -> MappingModel:
    """Return a mapped network with running statistics, and dropout."""
    torch.manual_seed(0)
    target = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    return MappingModel(target, 24, "slvt", buffers="tracked")


def batches(*bad: int, count: int = 6, value: float = float("nan")) -> list[tuple[Tensor, Tensor]]:
    """Batches of 4, of which these hold a NaN."""
    x, y = targets.rows(4 * count)
    x = x.clone()
    for index in bad:
        x[4 * index + 1, 2] = value
    return [(x[4 * index : 4 * index + 4], y[4 * index : 4 * index + 4]) for index in range(count)]


def poisoned(made: MappingModel, *passes: int) -> MappingModel:
    """Make the latent's gradient NaN in these backward passes, with a loss that is finite."""
    count = iter(range(10_000))
    hook = made.latent.register_hook  # untyped
    hook(lambda grad: grad * float("nan") if next(count) in passes else grad)  # type: ignore[no-untyped-call]
    return made


def trainer(made: MappingModel, loader: Any, **options: Any) -> MappingTrainer:
    """Return a trainer by SGD with momentum, whose rate does not depend on the length of the run."""
    optimizer = torch.optim.SGD(made.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    return targets.trainer_of(made, loader, optimizer=optimizer, scheduler=scheduler, **{"max_epochs": 1, **options})


def state_of(made: MappingTrainer) -> dict[str, Any]:
    """Everything that a step changes, by value."""
    assert made.optimizer is not None
    assert made.own_scheduler is not None
    return copy.deepcopy(
        {
            "model": {name: tensor.tolist() for name, tensor in made.model.state_dict().items()},
            "optimizer": repr(made.optimizer.state_dict()),
            "scheduler": made.own_scheduler.state_dict(),
            "step": made.step,
        }
    )


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize(
    ("accumulate", "bad", "without"),
    [(1, (2,), [0, 1, 3, 4, 5]), (1, (0, 5), [1, 2, 3, 4]), (2, (3,), [0, 1, 4, 5]), (3, (0,), [3, 4, 5])],
)
def test_skip_is_as_if_the_window_were_not_there(
    accumulate: int, bad: tuple[int, ...], without: list[int], value: float
) -> None:
    """A window with a bad batch leaves nothing: latent, statistics, momentum and rate are those of a run without it."""
    skipped = trainer(model(), batches(*bad, value=value), accumulate=accumulate, nonfinite="skip")
    skipped.fit()
    good = batches()
    plain = trainer(model(), [good[index] for index in without], accumulate=accumulate)
    plain.fit()
    assert state_of(skipped) == state_of(plain)


def test_a_gradient_that_is_nan_under_a_finite_loss() -> None:
    """The same for a gradient; by `raise` the run ends before the optimiser has seen it."""
    skipped = trainer(poisoned(model(), 2), batches(), nonfinite="skip")
    skipped.fit()
    good = batches()
    plain = trainer(model(), [*good[:2], *good[3:]])
    plain.fit()
    assert state_of(skipped) == state_of(plain)
    raising = trainer(poisoned(model(), 2), batches())
    with pytest.raises(NonFiniteError, match=r"the gradient's norm is nan at step 3 \(epoch 0, batch 2\)"):
        raising.fit()
    two = trainer(model(), batches()[:2])
    two.fit()
    assert state_of(raising) == state_of(two)


@pytest.mark.parametrize("clip", [{"clip_value": 0.1}, {"clip_norm": 0.1}, {"clip_norm": 0.1, "clip_value": 0.01}])
def test_clipping_does_not_hide_infinity(clip: dict[str, float]) -> None:
    """An infinite gradient, which clipping would make a number, is refused."""
    made = model()
    hook = made.latent.register_hook  # untyped
    hook(lambda grad: grad * float("inf"))  # type: ignore[no-untyped-call]
    with pytest.raises(NonFiniteError, match=r"the gradient's norm is (inf|nan) at step 1"):
        trainer(made, batches(), **clip).fit()
    assert not made.latent_vector().any()


class Watch(Callback):
    """Keeps the state at each epoch's start, checkpoint, and batch's end."""

    def __init__(self) -> None:
        self.starts: list[Any] = []
        self.saved: list[Any] = []
        self.batches: list[Any] = []

    def on_epoch_start(self, trainer: MappingTrainer, epoch: int) -> None:
        self.starts.append(state_of(trainer))

    def on_checkpoint(self, trainer: MappingTrainer, path: Path) -> None:
        self.saved.append(state_of(trainer))

    def on_batch_end(self, trainer: MappingTrainer, record: Any) -> None:
        self.batches.append((record.stepped, state_of(trainer)))


@pytest.mark.parametrize("gradient", [False, True])
def test_rollback_restores_everything(gradient: bool) -> None:
    """After a bad batch weights, statistics, momentum, rate and step are exactly those at the epoch's start."""
    watch = Watch()
    made = poisoned(model(), 9) if gradient else model()
    loader = batches() if gradient else batches(3)
    done = trainer(made, loader, max_epochs=2, nonfinite="rollback", callbacks=[watch])
    history = done.fit()
    assert watch.batches[9] == (False, watch.starts[1])
    if not gradient:
        assert watch.batches[3] == (False, watch.starts[0])
    assert done.step == history.last.step
    assert targets.latent_of(done).isfinite().all()
    # The batches behind it train again from there.
    assert [stepped for stepped, _ in watch.batches].count(False) == (1 if gradient else 2)


def test_rollback_to_a_checkpoint(tmp_path: Path) -> None:
    """Where a checkpoint was written since the epoch's start, that comes back, and its steps are made anew."""
    watch = Watch()
    options = {"nonfinite": "rollback", "run_dir": tmp_path, "checkpoint_every": 2, "callbacks": [watch]}
    done = trainer(model(), batches(3), **options)
    done.fit()
    assert watch.batches[3] == (False, watch.saved[0])
    assert watch.saved[0]["step"] == 2
    assert done.step == 4


def test_rollback_of_a_resumed_run(tmp_path: Path) -> None:
    """Inside an epoch that another process began, it is the checkpoint resumed from that comes back."""
    trainer(model(), batches(), max_steps=2, run_dir=tmp_path).fit()
    watch = Watch()
    done = trainer(model(), batches(3), nonfinite="rollback", run_dir=tmp_path, callbacks=[watch])
    done.fit(resume="last")
    assert watch.batches[1][0] is False
    assert watch.batches[1][1]["step"] == 2


@pytest.mark.parametrize("policy", ["skip", "rollback"])
def test_nothing_but_nan_ends_the_run(policy: str) -> None:
    """After 25 windows in a row without a step the run ends, and the latent is what it was."""
    made = model()
    with pytest.raises(NonFiniteError, match="and so for 25 steps in a row: lower learning_rate"):
        trainer(made, batches(*range(40), count=40), nonfinite=policy).fit()
    assert not made.latent_vector().any()


def test_each_refusal_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """A step that was refused is a warning that says where."""
    trainer(model(), batches(1, 4), nonfinite="skip").fit()
    faults = [record.getMessage() for record in caplog.records if "not finite" in record.getMessage()]
    assert len(faults) == 2
    assert "at step 2 (epoch 0, batch 1)" in faults[0]
