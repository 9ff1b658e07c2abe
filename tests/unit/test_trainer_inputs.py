"""What the trainer takes: loaders, batches, losses, precisions; and what it refuses."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from mapping_core import (
    ConfigError,
    DataError,
    Loss,
    MappingModel,
    NonFiniteError,
    TargetError,
)
from mapping_core.interfaces.loss import LossStep
from mapping_core.training.batches import Batch
from tests import targets
from tests.targets import trainer_of


class Says(list[Any]):
    """A loader that says it has ten batches."""

    def __len__(self) -> int:
        return 10


class Stream(IterableDataset[Any]):
    """Samples without a length."""

    def __iter__(self) -> Iterator[Any]:
        return iter(TensorDataset(*targets.rows(16)))


def with_optimizer(kind: Any, schedule: Any = None) -> None:
    """Make a trainer with an optimizer of this kind, and a scheduler of it."""
    model = MappingModel(targets.mlp(), 16)
    optimizer = kind(model.parameters(), 0.1)
    trainer_of(model, optimizer=optimizer, scheduler=None if schedule is None else schedule(optimizer))


def step_of_another(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    """Return a scheduler of a copy."""
    return torch.optim.lr_scheduler.StepLR(copy.deepcopy(optimizer), 1)


@pytest.mark.parametrize(
    ("loader", "total"),
    [
        (Says(list(targets.loader(16))), 20),
        (DataLoader(Stream(), batch_size=8), None),
        (type("Plain", (), {"__iter__": lambda self: iter(targets.loader(16))})(), None),
    ],
    ids=["says ten", "iterable", "plain"],
)
def test_lengths_that_are_wrong_or_missing(loader: Any, total: int | None) -> None:
    """A loader that yields fewer batches than it says, or says nothing, trains and validates every epoch."""
    trainer = trainer_of(None, loader, targets.loader(10))
    assert trainer.total_steps == total
    history = trainer.fit()
    assert [record.step for record in history] == [2, 4]
    assert len(history["val_loss"]) == 2


class Picky(nn.Module):
    """Needs two keyword inputs and returns a nest."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 3)

    def forward(self, x: Tensor, mask: Tensor) -> dict[str, Any]:
        return {"hidden": [x], "logits": self.linear(x * mask)}


def test_dictionary_batches() -> None:
    """Batches in dictionary form train a target with keyword inputs and a nested output."""
    x, y = targets.rows(8)
    batches = [{"x": x, "mask": torch.ones(8, 1), "labels": y}]
    history = trainer_of(MappingModel(Picky(), 16), batches, batches).fit()
    assert history["val_loss"][1] < history["val_loss"][0]


def test_batch_adapter() -> None:
    """`batch_adapter` turns any form into inputs and targets."""
    x, y = targets.rows(8)
    trainer = trainer_of(None, [[y, x]], batch_adapter=lambda batch: Batch((batch[1],), {}, batch[0]))
    assert trainer.fit().last.train["accuracy"] >= 0


def test_batches_without_items_are_left_out() -> None:
    """A batch in which every target is ignored makes no step; only such batches are an error."""
    x, y = targets.rows(8)
    ignored = (x, torch.full((8,), -100))
    history = trainer_of(None, [(x, y), ignored, (x, y)], [(x, y), ignored]).fit()
    assert history.last.step == 4
    assert history["val_loss"][1] < history["val_loss"][0]
    with pytest.raises(DataError, match="train_loader gave nothing to train on in epoch 0"):
        trainer_of(None, [ignored]).fit()
    with pytest.raises(DataError, match="validation loader gave no batch with items"):
        trainer_of(None, [(x, y)], [ignored]).fit()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite(value: float) -> None:
    """NaN and infinity end the run before the optimiser sees them, and say where."""
    x, y = targets.rows(8)
    model = MappingModel(targets.mlp(), 16)
    bad = x.clone()
    bad[0, 0] = value
    with pytest.raises(NonFiniteError, match=r"the loss is (nan|inf) at step 2 \(epoch 0, batch 1\)"):
        trainer_of(model, [(x, y), (bad, y)]).fit()
    assert model.latent_vector().isfinite().all()


@pytest.mark.parametrize("precision", ["64-true", "bf16-mixed", "bf16-true"])
def test_precisions(precision: str, tmp_path: Path) -> None:
    """Every precision trains, and its checkpoint loads onto the target as it was."""
    target = targets.mlp()
    model = MappingModel(target, 16)
    history = trainer_of(model, max_epochs=4, precision=precision).fit()
    assert history["train_loss"][-1] < history["train_loss"][0]
    model.save(tmp_path / "m")
    loaded = MappingModel.load(tmp_path / "m", target)
    torch.testing.assert_close(loaded.latent_vector(), model.latent_vector().float())


class Distance(Loss):
    """The distance to the outputs of the untrained model, by evaluating it under latents of 0."""

    def forward(self, step: LossStep) -> Tensor:
        zero = {name: torch.zeros_like(z) for name, z in step.latents.items()}
        difference: Tensor = step.predictions - step.evaluate(zero) - 1.0
        return difference.square().mean()

    def items(self, step: LossStep) -> int:
        return len(step.predictions)


def test_a_loss_object_sees_latents() -> None:
    """A loss object is taken as it is, and can evaluate the same inputs under other latents."""
    history = trainer_of(loss=Distance(), max_epochs=5).fit()
    assert history["train_loss"][-1] < history["train_loss"][0] <= 1.01
    with pytest.raises(DataError, match="this model has no latents"):
        trainer_of(targets.mlp(), loss=Distance()).fit()


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: trainer_of(None, []).fit(), DataError, "train_loader is empty: it has no batch to train on"),
        (lambda: trainer_of(None, None, []).fit(), DataError, "val_loader is empty: pass val_loader=None"),
        (lambda: trainer_of(None, iter([])).fit(), DataError, "train_loader gave nothing to train on in epoch 0"),
        (lambda: trainer_of(None, iter([targets.rows()])).fit(), DataError, "nothing to train on in epoch 1"),
        (lambda: trainer_of(None, 3).fit(), DataError, "train_loader must be an iterable of batches, got int"),
        (lambda: trainer_of().validate(), DataError, "there is no loader to validate on"),
        (lambda: trainer_of("model"), TargetError, "model must be a torch.nn.Module, got str"),  # type: ignore[arg-type]
        (lambda: trainer_of(learning_rate=0), ConfigError, "learning_rate: must be > 0"),
        (lambda: trainer_of(warmup=1.0), ConfigError, r"'?warmup'?:? must be < 1"),
        (lambda: trainer_of(max_epochs=0), ConfigError, "max_epochs: must be >= 1"),
        (lambda: trainer_of(schedule="linear"), ConfigError, "schedule: must be in .*'cosine', 'constant'"),
        (lambda: trainer_of(precision="8"), ConfigError, "precision: .*bf16-mixed"),
        (lambda: trainer_of(seed=2**64), ConfigError, "seed: must be"),
        (lambda: trainer_of(loss=3), ConfigError, "loss: expected a loss"),
        (lambda: trainer_of(accelerator="gpuu").fit(), ConfigError, "accelerator: 'gpuu' with devices=1"),
        (lambda: trainer_of(callbacks="log"), ConfigError, "callbacks: must be a list, got 'log'"),
        (lambda: trainer_of(scheduler=object()), ConfigError, "scheduler: needs the optimizer it belongs to"),
        (lambda: trainer_of(optimizer="adam"), ConfigError, "optimizer: must be a torch.optim.Optimizer, got 'adam'"),
        (
            lambda: with_optimizer(torch.optim.SGD, step_of_another),
            ConfigError,
            "scheduler: belongs to another optimizer",
        ),
        (
            lambda: with_optimizer(torch.optim.SGD, torch.optim.lr_scheduler.ReduceLROnPlateau),
            ConfigError,
            "scheduler: ReduceLROnPlateau steps on the validation loss of an epoch: set scheduler_interval='epoch'",
        ),
        (lambda: with_optimizer(torch.optim.LBFGS), ConfigError, "optimizer: LBFGS evaluates the loss several times"),
        (lambda: trainer_of(None, None, 3).fit(), DataError, "val_loader must be an iterable of batches, got int"),
        (lambda: trainer_of(batch_adapter=len).fit(), DataError, "batch_adapter must return a .*Batch.*gave int"),
        (lambda: trainer_of(loss=nn.MSELoss), ConfigError, r"loss: MSELoss is a class: make a loss of it, MSELoss\(\)"),
        (
            lambda: trainer_of(loss=nn.CrossEntropyLoss(reduction="sum")),
            ConfigError,
            "loss: CrossEntropyLoss has reduction='sum'; batches are weighted .*set reduction='mean'",
        ),
        (
            lambda: trainer_of(optimizer=torch.optim.SGD(targets.mlp().parameters(), 0.1)),
            ConfigError,
            "optimizer: holds no parameter of this MappingModel",
        ),
    ],
)
def test_refusals(make: Any, error: type[Exception], message: str) -> None:
    """What cannot train is refused in one line that names the argument."""
    with pytest.raises(error, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_a_tensor_is_no_loader() -> None:
    """What gives samples instead of batches is refused by every method that takes a loader."""
    x, y = targets.rows(8)
    for use in ("predict", "validate", "test"):
        for wrong in (x, TensorDataset(x, y)):
            with pytest.raises(DataError, match="must be an iterable of batches, got Tensor"):
                getattr(trainer_of(MappingModel(targets.mlp(), 16)), use)(wrong)


def test_predictions_are_of_what_the_own_batch_adapter_finds() -> None:
    """A form of batches that a trainer was told of is known to `predict` too."""
    x, y = targets.rows(8)
    batches = [{"image": x, "number": y}]
    trainer = trainer_of(
        MappingModel(targets.mlp(), 16), batches, batch_adapter=lambda b: Batch((b["image"],), {}, b["number"])
    )
    trainer.fit()
    assert torch.equal(trainer.predict(batches), trainer.model.eval()(x).detach())


def test_a_metric_cannot_take_the_name_of_the_loss() -> None:
    """The loss is reported, whatever metrics are called."""
    with pytest.raises(ConfigError, match="is the name of the loss itself"):
        trainer_of(MappingModel(targets.mlp(), 16), metrics={"loss": object()})
