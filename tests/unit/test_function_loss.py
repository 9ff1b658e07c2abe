"""Functions of outputs and targets as losses."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from mapping_core import LossError
from mapping_core.builtin.losses.function import FunctionLoss
from mapping_core.interfaces.loss import LossStep
from mapping_core.training.batches import adapt_batch
from tests import targets
from tests.targets import trainer_of


def step(predictions: Any, targets_: Any) -> LossStep:
    """Return the step of a model without latents."""
    return LossStep(predictions=predictions, targets=targets_, latents={}, evaluate=lambda latents: None)


def squared(outputs: Tensor, labels: Tensor) -> Tensor:
    """Return the mean squared distance to one-hot rows."""
    return (outputs - functional.one_hot(labels, outputs.shape[1])).square().mean()


@pytest.mark.parametrize("loss", [nn.CrossEntropyLoss(), functional.cross_entropy])
def test_the_run_of_cross_entropy(loss: Any) -> None:
    """Torch's loss, as a module or a function, gives the very run that the component gives."""
    runs = [trainer_of(targets.mlp(), loss=each, seed=0, max_epochs=2) for each in ("cross_entropy", loss)]
    losses = [run.fit()["train_loss"] for run in runs]
    assert losses[0] == losses[1]


def test_a_function_and_an_adapter_that_returns_a_tuple() -> None:
    """A plain function trains, with batches from an adapter that gives (inputs, targets)."""

    def adapter(batch: Any) -> Any:
        x, y = batch
        return x, y

    history = trainer_of(targets.mlp(), loss=squared, batch_adapter=adapter, seed=0, max_epochs=5).fit()
    assert history["train_loss"][-1] < history["train_loss"][0]
    assert adapt_batch((1, 2)).targets == 2


def test_items() -> None:
    """Items are the targets' first dimension, for a module with ignore_index the targets that are not ignored."""
    labels = torch.tensor([[1, -100, 0], [2, 2, -100]])
    assert FunctionLoss(nn.CrossEntropyLoss()).items(step(None, labels)) == 4
    assert FunctionLoss(functional.cross_entropy).items(step(None, labels)) == 2
    assert FunctionLoss(nn.MSELoss()).items(step(None, torch.tensor(1.0))) == 1
    with pytest.raises(LossError, match=r"loss squared: targets of type dict cannot be counted.*items"):
        FunctionLoss(squared).items(step(None, {"y": labels}))


@pytest.mark.parametrize(("value", "got"), [(torch.zeros(3), r"shape \[3\]"), (0.5, "float")])
def test_what_is_no_mean(value: Any, got: str) -> None:
    """A loss that is no scalar tensor is refused with what it returned."""
    with pytest.raises(LossError, match=f"must return the batch's mean as a scalar tensor, it returned {got}"):
        FunctionLoss(lambda outputs, labels: value)(step(None, None))


class Margin(nn.Module):
    """A loss with a number of its own to train."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return functional.cross_entropy(outputs * self.scale, labels)


def test_a_loss_of_ones_own_trains() -> None:
    """A module's parameters train with the model."""
    loss = Margin()
    trainer_of(targets.mlp(), loss=loss, seed=0).fit()
    assert float(loss.scale.detach()) != 1.0


def test_classes_in_the_last_dimension() -> None:
    """Logits [N, T, C] are refused with the dimension that the classes must be."""
    from mapping_core.builtin.losses.cross_entropy import CrossEntropyLoss

    with pytest.raises(LossError, match="the classes must be dimension 1, not the last"):
        CrossEntropyLoss()(step(torch.zeros(2, 3, 5), torch.zeros(2, 3, dtype=torch.int64)))
