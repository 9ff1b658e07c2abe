"""The training loop: its steps, its averages, its modes, its seeds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from mapping_core import (
    History,
    MappingModel,
)
from tests import targets
from tests.targets import trainer_of


def test_three_lines() -> None:
    """Model, trainer, fit: the loss falls, and the history has every epoch and the reason it ended."""
    model = MappingModel(targets.mlp(), 64)
    history = trainer_of(model, targets.loader(), targets.loader(10), max_epochs=12).fit()
    assert isinstance(history, History)
    assert [record.epoch for record in history] == list(range(12))
    assert history["train_loss"][-1] < history["train_loss"][0]
    assert history["val_loss"][-1] < history["val_loss"][0]
    assert set(history.last.metrics()) == {"train_loss", "train_accuracy", "val_loss", "val_accuracy"}
    assert history.last.step == 36
    assert len(history) == 12
    assert history.stop_reason == "max_epochs=12 reached"
    with pytest.raises(KeyError, match="'val_los': the history has train_accuracy, train_loss"):
        history["val_los"]


def test_training_is_steps_of_the_optimizer() -> None:
    """The loop makes exactly the steps that a hand-written loop makes."""
    trained, by_hand = targets.mlp(), targets.mlp()
    loader = targets.loader()
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.1)
    trainer_of(trained, loader, optimizer=optimizer).fit()
    own = torch.optim.SGD(by_hand.parameters(), lr=0.1)
    for _ in range(2):
        for x, y in loader:
            own.zero_grad()
            functional.cross_entropy(by_hand(x), y).backward()  # type: ignore[no-untyped-call]
            own.step()
    for a, b in zip(trained.parameters(), by_hand.parameters(), strict=True):
        assert torch.equal(a, b)


def test_own_scheduler_steps_after_each_step() -> None:
    """A scheduler given with its optimizer sets the rate of every next step."""
    model = targets.mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    history = trainer_of(model, optimizer=optimizer, scheduler=scheduler).fit()
    assert [record.learning_rate for record in history] == [0.5**2, 0.5**5]


def test_validation_is_the_loss_over_all_items() -> None:
    """10 samples in batches of 4, 4 and 2 give the loss and accuracy over all 10 at once."""
    model = MappingModel(targets.mlp(), 16)
    made = trainer_of(model).validate(targets.loader(10, batch_size=4))
    x, y = targets.rows(10)
    assert made["loss"] == pytest.approx(functional.cross_entropy(model(x), y).item(), rel=1e-6)
    assert made["accuracy"] == pytest.approx((model(x).argmax(1) == y).float().mean().item())


@pytest.mark.parametrize("policy", ["frozen", "tracked"])
def test_modes_are_restored(policy: str) -> None:
    """A norm that the user put in evaluation mode stays there over validations, its statistics unmoved."""
    target = targets.conv_norm()
    target[1].eval()
    model = MappingModel(target, 16, buffers=policy)
    modes = [module.training for module in model.skeleton.modules()]
    data = DataLoader(TensorDataset(torch.randn(8, 1, 6, 6), torch.arange(8) % 3), batch_size=4)
    trainer_of(model, data, data).fit()
    assert [module.training for module in model.skeleton.modules()] == modes
    exported = model.export()
    assert torch.equal(exported.get_buffer("1.running_var"), torch.ones(4))
    assert not exported.get_submodule("1").training


def test_a_model_in_evaluation_mode_is_trained() -> None:
    """A model that is in evaluation mode as a whole is put into training mode."""
    model = nn.Sequential(nn.Linear(6, 3), nn.Dropout(0.5)).eval()
    trainer_of(model).fit()
    assert all(module.training for module in model.modules())


def test_same_seed_same_losses() -> None:
    """One seed gives the same losses and latent, twice in a process; another seed gives others."""

    def run(seed: int) -> tuple[list[float], Tensor]:
        model = MappingModel(targets.mlp(), 16, seed=7)
        return trainer_of(model, targets.loader(shuffle=True), seed=seed).fit()["train_loss"], model.latent_vector()

    (losses, latent), (again, twin) = run(7), run(7)
    assert losses == again
    assert torch.equal(latent, twin)
    assert run(8)[0] != losses


def test_same_seed_in_another_process() -> None:
    """One seed gives the same losses in another process."""
    code = (
        "from tests import targets;"
        "print(targets.trainer_of(None, targets.loader(shuffle=True), seed=7).fit()['train_loss'])"
    )
    there = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True
    )
    assert there.stdout.strip() == str(trainer_of(None, targets.loader(shuffle=True), seed=7).fit()["train_loss"])


def test_no_seed_leaves_the_generator_alone() -> None:
    """Without a seed, what the user seeded decides the order of batches."""

    def run(seed: int) -> list[float]:
        model = MappingModel(targets.mlp(), 16)
        torch.manual_seed(seed)
        return trainer_of(model, targets.loader(shuffle=True), seed=None).fit()["train_loss"]

    assert run(1) == run(1)
    assert run(1) != run(2)


def test_fit_again_goes_on_from_the_weights() -> None:
    """A second `fit` starts a new history from the weights at hand."""
    trainer = trainer_of()
    first = trainer.fit()
    second = trainer.fit()
    assert len(first) == len(second) == 2
    assert second["train_loss"][0] < first["train_loss"][0]
    assert trainer.step == 6


def test_max_steps() -> None:
    """`max_steps` ends the run in the middle of an epoch, with that epoch's record, and sets the schedule's length."""
    trainer = trainer_of(max_epochs=5, max_steps=4)
    assert trainer.total_steps == 4
    history = trainer.fit()
    assert (len(history), history.last.step, history.stop_reason) == (2, 4, "max_steps=4 reached")
