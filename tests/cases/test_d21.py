"""D21: evaluation loss and batch size. Source: transformers issue 39241 (a mean of means)."""

from __future__ import annotations

from typing import Any

import pytest
from torch import Tensor
from torch.nn import functional

from mapping_core import Callback, MappingModel, MappingTrainer
from tests import targets


class Count:
    """A metric of one's own: the share of items of class 0 among all predictions."""

    def reset(self) -> None:
        self.hits = self.items = 0

    def update(self, predictions: Tensor, targets: Tensor) -> None:
        self.hits += int((predictions.argmax(1) == 0).sum())
        self.items += len(targets)

    def compute(self) -> float:
        return self.hits / self.items


@pytest.mark.parametrize("batch_size", [1, 3, 4, 10])
def test_any_batch_size_gives_the_loss_over_all(batch_size: int) -> None:
    """10 samples in batches of any size give loss, accuracy and a metric of one's own over all 10 at once."""
    model = MappingModel(targets.mlp(), 16)
    loader = targets.loader(10, batch_size=batch_size)
    made = targets.trainer_of(model, None, loader, metrics={"zeros": Count()})
    history = made.fit()
    x, y = targets.rows(10)
    logits = model(x)
    expected = {
        "loss": functional.cross_entropy(logits, y).item(),
        "accuracy": (logits.argmax(1) == y).float().mean().item(),
        "zeros": (logits.argmax(1) == 0).float().mean().item(),
    }
    for found in (history.last.validation, made.validate(), made.test(loader)):
        assert found == pytest.approx(expected, rel=1e-6)


def test_training_means_are_over_items_too() -> None:
    """The training loss of an epoch is the mean over its items: batches of 4, 4 and 2 at weights that stay."""

    class Stay(Callback):
        def on_batch_start(self, trainer: MappingTrainer, batch: Any) -> None:
            assert trainer.optimizer is not None
            trainer.optimizer.param_groups[0]["lr"] = 0.0

    model = MappingModel(targets.mlp(), 16)
    made = targets.trainer_of(model, targets.loader(10, batch_size=4), max_epochs=1, callbacks=[Stay()])
    x, y = targets.rows(10)
    assert made.fit()["train_loss"] == pytest.approx([functional.cross_entropy(model(x), y).item()], rel=1e-6)
