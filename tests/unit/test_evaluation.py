"""Evaluating without training: means over items, metrics of one's own and torchmetrics', outputs in their nest."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torchmetrics
from torch import Tensor, nn
from torch.nn import functional

from mapping_core import ConfigError, DataError, MappingModel
from tests import targets


class Nested(nn.Module):
    """Outputs in a nest: a tuple in a dictionary, a number a batch, and something that is no tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.body = targets.mlp()
        self.dropout = nn.Dropout(0.9)

    def forward(self, x: Tensor) -> dict[str, Any]:
        logits = self.dropout(self.body(x))
        return {"logits": logits, "more": (logits.sum(1), [logits.mean()]), "name": "nested"}


class Mean:
    """A metric of one's own: the mean of the first logit."""

    def reset(self) -> None:
        self.values: list[Tensor] = []

    def update(self, predictions: Tensor, targets: Tensor) -> None:
        self.values.append(predictions[:, 0])

    def compute(self) -> Tensor:
        return torch.cat(self.values).mean()


def test_metrics_are_computed_over_everything() -> None:
    """A metric of one's own and torchmetrics', reset for each evaluation, beside loss and accuracy, in every record."""
    model = MappingModel(targets.mlp(), 16)
    metrics = {
        "first": Mean(),
        "top2": torchmetrics.Accuracy(task="multiclass", num_classes=3, top_k=2),
        "f1": torchmetrics.F1Score(task="multiclass", num_classes=3, average="macro"),
    }
    made = targets.trainer_of(model, None, targets.loader(10, batch_size=4), metrics=metrics)
    history = made.fit()
    x, y = targets.rows(10)
    logits = model.eval()(x).detach()
    expected = {
        "loss": functional.cross_entropy(logits, y).item(),
        "accuracy": (logits.argmax(1) == y).float().mean().item(),
        "first": logits[:, 0].mean().item(),
        "top2": (logits.topk(2).indices == y[:, None]).any(1).float().mean().item(),
        "f1": torchmetrics.functional.f1_score(logits, y, "multiclass", num_classes=3, average="macro").item(),
    }
    assert history.last.validation == pytest.approx(expected, rel=1e-5)
    assert made.validate() == pytest.approx(expected, rel=1e-5)
    assert set(history.last.train) == {"loss", "accuracy"}
    other = made.test(targets.loader(24))
    assert other["first"] != pytest.approx(expected["first"])


def test_predictions_keep_their_nest() -> None:
    """Tensors are joined over batches, in the nest that the target returns, in evaluation mode, detached."""
    model = MappingModel(Nested(), 16)
    x, y = targets.rows(10)
    made = targets.trainer_of(model, [(x, y)])
    found = made.predict(targets.loader(10, batch_size=4))
    expected = model.eval()(x)
    assert torch.equal(found["logits"], expected["logits"])
    assert torch.equal(found["more"][0], expected["more"][0])
    assert found["more"][1][0].shape == (3,)  # one number a batch
    assert found["name"] == ["nested"] * 3
    assert not found["logits"].requires_grad


@pytest.mark.parametrize(
    "batches",
    [
        [torch.ones(4, 6), torch.zeros(2, 6)],
        [(torch.ones(4, 6),), (torch.zeros(2, 6),)],
        [{"input": torch.ones(4, 6)}, {"input": torch.zeros(2, 6), "labels": torch.zeros(2)}],
    ],
    ids=["bare", "tuple", "dictionary"],
)
def test_inputs_without_targets(batches: list[Any]) -> None:
    """What is predicted needs no targets; those that are there are left out."""
    model = MappingModel(nn.Linear(6, 3), 8)
    made = targets.trainer_of(model, [])
    expected = model(torch.cat([torch.ones(4, 6), torch.zeros(2, 6)])).detach()
    torch.testing.assert_close(made.predict(batches), expected)


def test_modes_and_errors() -> None:
    """Evaluation leaves each module's mode; nothing to predict or to validate is an error that says so."""
    model = MappingModel(Nested(), 16).train()
    made = targets.trainer_of(model)
    made.predict([torch.ones(1, 6)])
    assert model.skeleton.get_submodule("dropout").training
    with pytest.raises(DataError, match="there is nothing to predict: the loader gave no batch"):
        made.predict(iter([]))
    with pytest.raises(DataError, match="the validation loader gave no batch with items"):
        made.validate(iter([]))
    with pytest.raises(DataError, match="the test loader gave no batch with items"):
        made.test(iter([]))


@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        ([Mean()], "metrics: must be a mapping from names to metrics, got list"),
        ({"a": nn.Linear(1, 1)}, r"metrics\['a'\]: Linear has no reset\(\): pass a torchmetrics metric"),
        ({"loss": Mean()}, r"metrics\['loss'\]: is the name of the loss itself"),
    ],
)
def test_what_is_no_metric(metrics: Any, message: str) -> None:
    """An object without the three methods is refused when the trainer is made."""
    with pytest.raises(ConfigError, match=message):
        targets.trainer_of(metrics=metrics)
