"""P11: structured inputs and outputs. Source: packages whose loop assumes one tensor in and one out.

The task losses are tried, and every term of the mapping loss.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from lightning_fabric import Fabric
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from mapping_core import MappingModel, MappingTrainer
from tests import targets


class Output(NamedTuple):
    """A named tuple with the scores first."""

    scores: Tensor
    hidden: tuple[Tensor, ...]


OUTPUTS: dict[str, Callable[[Tensor], Any]] = {
    "tensor": lambda scores: scores,
    "dict": lambda scores: {"hidden": scores * 2, "logits": scores},
    "dict_of_other_key": lambda scores: OrderedDict(out=scores, aux=scores * 2),
    "tuple": lambda scores: (scores, scores * 2),
    "list": lambda scores: [scores],
    "nested_tuple": lambda scores: ((scores, (scores * 2,)), {"state": scores}),
    "dict_in_tuple": lambda scores: ({"logits": scores}, None),
    "named_tuple": lambda scores: Output(scores, (scores,)),
}


class Structured(nn.Module):
    """Several inputs, by position, keyword and nesting; scores [N, 3] somewhere in the output."""

    def __init__(self, output: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(6, 3)
        self.output = output
        self.arrived: list[bool] = []

    def forward(self, x: Tensor, mask: Tensor | None = None, extra: Any = None) -> Any:
        given = [x] if mask is None else [x, mask, extra["pair"][0], extra["pair"][1]["deep"]]
        scores = self.layer(sum(given[2:], start=given[0]) if mask is None else x * mask + given[2] + given[3])
        return OUTPUTS[self.output](scores)


def nested_batches(targets_of: Callable[[Tensor], Tensor], key: str = "labels") -> list[Any]:
    """Batches as dictionaries with tensors in lists and dictionaries, several inputs by name."""
    x, labels = targets.rows(24)
    return [
        {
            "x": each,
            "mask": torch.ones(6),
            "extra": {"pair": [torch.zeros(6), {"deep": torch.zeros(8, 6)}]},
            key: targets_of(label),
        }
        for each, label in zip(torch.split(x, 8), torch.split(labels, 8), strict=True)
    ]


def falls(model: MappingModel, batches: Any, **options: Any) -> bool:
    """Whether training lowers the loss."""
    history = targets.trainer_of(model, batches, max_epochs=6, **options).fit()
    return bool(history["train_loss"][-1] < history["train_loss"][0])


@pytest.mark.parametrize("output", OUTPUTS)
def test_classification(output: str) -> None:
    """Whatever the scores are wrapped in, cross-entropy finds them and training lowers it."""
    assert falls(MappingModel(Structured(output), 12), targets.loader())


@pytest.mark.parametrize("output", OUTPUTS)
def test_every_term_of_the_mapping_loss(output: str) -> None:
    """So do stability, smoothness and alignment, alone and in their sum with the task."""
    batches = nested_batches(lambda labels: labels)
    model = MappingModel(Structured(output), 12)
    history = targets.trainer_of(model, batches, batches, max_epochs=6, loss="mapping").fit()
    assert history["train_task_loss"][-1] < history["train_task_loss"][0]
    for term in ("stability", "smoothness", "alignment"):
        assert torch.tensor(history[f"train_{term}"]).isfinite().all()
        alone = targets.trainer_of(MappingModel(Structured(output), 12), batches, max_epochs=1, loss=term).fit()
        assert torch.tensor(alone["train_loss"]).isfinite().all()


@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize("loss", ["auto", "mse"])
def test_regression(output: str, loss: str) -> None:
    """The same for floating-point targets and the mean squared error."""
    x, labels = targets.rows(24)
    wanted = nn.functional.one_hot(labels, 3).float()
    batches = list(zip(torch.split(x, 8), torch.split(wanted, 8), strict=True))
    assert falls(MappingModel(Structured(output), 12), batches, loss=loss)


@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize(("key", "lazy"), [("labels", False), ("y", True)])
def test_dictionary_batches(output: str, key: str, lazy: bool) -> None:
    """A dictionary with several inputs, nested ones too, reaches the target by keyword."""
    assert falls(MappingModel(Structured(output), 12, lazy=lazy), nested_batches(lambda labels: labels, key))


class Rows(Dataset[dict[str, Any]]):
    """Nested samples, for a real loader to collate."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> dict[str, Any]:
        x, labels = targets.rows(24)
        extra = {"pair": [torch.zeros(6), {"deep": torch.zeros(6)}]}
        return {"x": x[index], "mask": torch.ones(6), "extra": extra, "labels": labels[index]}


def test_a_loader_that_collates() -> None:
    """A torch loader's nested batches do as well, in training and in validation."""
    loader = DataLoader(Rows(), batch_size=8)
    model = MappingModel(Structured("nested_tuple"), 12)
    history = targets.trainer_of(model, loader, loader, max_epochs=4).fit()
    assert history["train_loss"][-1] < history["train_loss"][0]
    assert len(history["val_loss"]) == 4


def test_nested_tensors_reach_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every tensor of a nested batch is moved, not only those on top."""
    sent: list[tuple[int, ...]] = []
    fabric = Fabric(accelerator="cpu")
    move = Tensor.to

    def noting(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        sent.append(tuple(tensor.shape))
        return move(tensor, *args, **kwargs)

    model = MappingModel(Structured("dict"), 12)
    trainer = MappingTrainer(
        model, nested_batches(lambda labels: labels), max_epochs=1, max_steps=1, progress=False, fabric=fabric
    )
    monkeypatch.setattr(Tensor, "to", noting)
    trainer.fit()
    monkeypatch.undo()
    assert {(8, 6), (6,), (8,)} <= set(sent)
    assert sent.count((8, 6)) >= 2  # x, and the one three levels down


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no other device than the CPU here")
def test_nested_tensors_on_another_device() -> None:
    """On a GPU a nested batch is where the model is."""
    model = MappingModel(Structured("dict"), 12)
    assert falls(model, nested_batches(lambda labels: labels), accelerator="cuda")
