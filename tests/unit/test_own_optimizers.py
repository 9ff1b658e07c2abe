"""Optimisers, schedulers and losses of the user's own: what they must hold, and that they survive a resume."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from mapping_core import (
    Callback,
    CheckpointError,
    ConfigError,
    Loss,
    LossConfig,
    MappingModel,
    MappingTrainer,
    Registry,
)
from mapping_core.contexts import LossContext
from mapping_core.training.checkpoint import STATE, checkpoints_in
from mapping_core.training.state import read_state
from tests import targets

STEPS = 12

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, nesterov=True),
    "Adam": lambda parameters: torch.optim.Adam(parameters, lr=0.1, amsgrad=True),
    "AdamW fused": lambda parameters: torch.optim.AdamW(parameters, lr=0.1, fused=True),
    "RMSprop": lambda parameters: torch.optim.RMSprop(parameters, lr=0.01, momentum=0.5, centered=True),
    "Adagrad": lambda parameters: torch.optim.Adagrad(parameters, lr=0.1),
    "NAdam": lambda parameters: torch.optim.NAdam(parameters, lr=0.1),
    "Adadelta": lambda parameters: torch.optim.Adadelta(parameters),
}

SCHEDULERS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "OneCycleLR": ("step", lambda optimizer: lr_scheduler.OneCycleLR(optimizer, max_lr=0.5, total_steps=STEPS)),
    "CosineAnnealingWarmRestarts": (
        "step",
        lambda optimizer: lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=2, T_mult=2),
    ),
    "SequentialLR": (
        "step",
        lambda optimizer: lr_scheduler.SequentialLR(
            optimizer,
            [
                lr_scheduler.LinearLR(optimizer, 0.1, total_iters=4),
                lr_scheduler.CosineAnnealingLR(optimizer, STEPS - 4),
            ],
            milestones=[4],
        ),
    ),
    "LambdaLR": ("step", lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step)),
    "StepLR an epoch": ("epoch", lambda optimizer: lr_scheduler.StepLR(optimizer, 1, gamma=0.5)),
    "ReduceLROnPlateau": (
        "epoch",
        lambda optimizer: lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=0.5),
    ),
}


class Rates(Callback):
    """Notes the rate of each step, and ends the run after one."""

    def __init__(self, stop: int) -> None:
        self.stop, self.seen = stop, list[float]()

    def on_batch_end(self, trainer: MappingTrainer, record: Any) -> None:
        self.seen.append(record.learning_rate)
        if record.step == self.stop:
            trainer.stop("enough")


def run(folder: Path, optimizer: str, scheduler: str | None, stop: int = 0) -> tuple[MappingTrainer, list[float]]:
    """Start a run of 4 epochs of 3 steps, or go on with it; return its rates."""
    model = MappingModel(targets.mlp(), 16)
    made = OPTIMIZERS[optimizer](model.parameters())
    interval, make = SCHEDULERS[scheduler] if scheduler else ("step", lambda optimizer: None)
    rates = Rates(stop)
    trainer = targets.trainer_of(
        model,
        None,
        targets.loader(),
        optimizer=made,
        scheduler=make(made),
        scheduler_interval=interval,
        max_epochs=4,
        run_dir=folder,
        callbacks=[rates],
    )
    trainer.fit(resume="last")
    return trainer, rates.seen


@pytest.mark.parametrize(
    ("optimizer", "scheduler"), [*((name, None) for name in OPTIMIZERS), *(("Adam", name) for name in SCHEDULERS)]
)
def test_a_resume_goes_on(optimizer: str, scheduler: str | None, tmp_path: Path) -> None:
    """Stopped inside an epoch and at the end of one, the rates and the numbers are those of the uninterrupted run."""
    whole, rates = run(tmp_path / "whole", optimizer, scheduler)
    _, first = run(tmp_path / "run", optimizer, scheduler, 4)
    _, second = run(tmp_path / "run", optimizer, scheduler, 9)
    resumed, third = run(tmp_path / "run", optimizer, scheduler)
    assert [*first, *second, *third] == rates
    assert len(rates) == STEPS
    assert torch.equal(targets.latent_of(resumed), targets.latent_of(whole))
    assert len(set(rates)) > 1 or scheduler is None


def test_an_epoch_is_the_interval() -> None:
    """`scheduler_interval="epoch"` moves the rate at each epoch's end, and a plateau by the validation loss."""
    model = targets.mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.8)
    rates = Rates(0)
    targets.trainer_of(
        model,
        optimizer=optimizer,
        scheduler=lr_scheduler.StepLR(optimizer, 1, gamma=0.5),
        scheduler_interval="epoch",
        callbacks=[rates],
    ).fit()
    assert rates.seen == [0.8] * 3 + [0.4] * 3
    assert optimizer.param_groups[0]["lr"] == 0.2


@pytest.mark.parametrize("validated", [True, False])
def test_a_plateau_looks_at_a_loss(validated: bool) -> None:
    """ReduceLROnPlateau gets the validation loss, or the training loss without validation."""
    model = targets.mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
    made = targets.trainer_of(
        model,
        None,
        targets.loader(10) if validated else None,
        optimizer=optimizer,
        scheduler=scheduler,
        scheduler_interval="epoch",
    )
    history = made.fit()
    assert scheduler.best == min(history["val_loss" if validated else "train_loss"])


# --- the loss's own parameters


def learned(model: nn.Module) -> Loss:
    """Return the mapping loss, whose terms' weights train."""
    return Registry.discover().resolve(LossConfig, {"type": "mapping", "learned": True}).build(LossContext(model=model))


def test_the_default_optimizer_takes_the_losses_parameters(tmp_path: Path) -> None:
    """Learned weights of a loss train by the default optimiser, are in the checkpoint, and come back."""

    def made(stop: int) -> MappingTrainer:
        torch.manual_seed(0)
        model = MappingModel(targets.mlp(), 16)
        return targets.trainer_of(model, loss=learned(model), max_epochs=4, run_dir=tmp_path, callbacks=[Rates(stop)])

    first = made(5)
    before = {name: tensor.clone() for name, tensor in first.loss.state_dict().items()}
    first.fit()
    moved = first.loss.state_dict()
    assert before
    assert all(not torch.equal(moved[name], tensor) for name, tensor in before.items())
    saved = read_state(checkpoints_in(tmp_path)[-1] / STATE)["loss"]
    assert all(torch.equal(saved[name], tensor) for name, tensor in moved.items())
    second = made(6)
    second.fit(resume="last")
    whole = made(6)
    whole.fit()
    expected = whole.loss.state_dict()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in second.loss.state_dict().items())


def test_an_optimizer_without_them_is_refused() -> None:
    """An optimiser of one's own that leaves the loss's parameters out is an error that names them."""
    model = MappingModel(targets.mlp(), 16)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    with pytest.raises(ConfigError, match=r"optimizer: holds none of the loss's own parameters \(.+\): make it of"):
        targets.trainer_of(model, loss=learned(model), optimizer=optimizer).fit()
    trainer = targets.trainer_of(model, loss=learned(model))
    both = torch.optim.Adam([*model.parameters(), *trainer.loss.parameters()], lr=0.1)
    targets.trainer_of(model, loss=trainer.loss, optimizer=both).fit()


def test_another_set_of_parameters(tmp_path: Path) -> None:
    """A checkpoint whose optimiser held other parameters is refused, and the model keeps its numbers."""
    run(tmp_path, "Adam", None, 4)
    model = MappingModel(targets.mlp(), 16)
    extra = nn.Parameter(torch.zeros(1))
    optimizer = OPTIMIZERS["Adam"]([*model.parameters(), extra])
    trainer = targets.trainer_of(model, None, targets.loader(), optimizer=optimizer, max_epochs=4, run_dir=tmp_path)
    with pytest.raises(CheckpointError, match=r"step-00000004: its Adam held \[1\] parameters .* has \[2\]"):
        trainer.fit(resume="last")
    assert not model.latent_vector().any()


def test_another_loss(tmp_path: Path) -> None:
    """A checkpoint with the parameters of another loss is refused by their names."""
    model = MappingModel(targets.mlp(), 16)
    trainer = targets.trainer_of(model, loss=learned(model), run_dir=tmp_path, callbacks=[Rates(2)])
    both = torch.optim.Adam([*model.parameters(), *trainer.loss.parameters()], lr=0.1)
    targets.trainer_of(model, loss=trainer.loss, optimizer=both, run_dir=tmp_path, callbacks=[Rates(2)]).fit()
    again = MappingModel(targets.mlp(), 16)
    optimizer = torch.optim.Adam([*again.parameters(), *nn.ParameterList(map(nn.Parameter, torch.zeros(3)))], lr=0.1)
    optimizer.param_groups[0]["params"] = optimizer.param_groups[0]["params"][: len(both.param_groups[0]["params"])]
    with pytest.raises(CheckpointError, match="this run's loss is another one, they differ in "):
        targets.trainer_of(again, optimizer=optimizer, run_dir=tmp_path).fit(resume="last")


def test_another_scheduler(tmp_path: Path) -> None:
    """A checkpoint with another scheduler's state is refused by both names."""
    run(tmp_path, "Adam", "OneCycleLR", 4)
    with pytest.raises(CheckpointError, match="was written with OneCycleLR, this run has LambdaLR"):
        run(tmp_path, "Adam", "LambdaLR")
