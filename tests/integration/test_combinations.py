"""Strategies, mappers, modulations, losses and forms of output: every pair of choices meets in some run."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations, product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mapping_core import ConfigError, MappingModel
from tests import targets

OUTPUTS: dict[str, Callable[[Tensor], Any]] = {
    "tensor": lambda scores: scores,
    "dict": lambda scores: {"hidden": scores * 2, "logits": scores},
    "nested": lambda scores: (({"logits": scores}, scores), None),
}

FACTORS: dict[str, list[Any]] = {
    "strategy": [
        "slvt",
        "layerwise",
        {"type": "lrd", "rank": 2, "strategy": "layerwise"},
        {"type": "pruned", "strategy": "layerwise"},
        {"type": "quantized", "strategy": "layerwise"},
        {"type": "finetune", "kind": "deltas", "blocks": ["body"]},
        {"type": "finetune", "kind": "gates"},
    ],
    "mapper": ["srht", "orthogonal", "hash", "fastfood", "mlp"],
    "modulation": [None, "additive", "affine", "low_rank", "gain", "block_scale"],
    "loss": [
        "auto",
        "mapping",
        {"type": "mapping", "learned": True, "terms": ["stability", {"type": "smoothness", "of": "mapping"}]},
        {"type": "mapping", "terms": [{"type": "alignment", "every": 2}, {"type": "smoothness", "samples": 2}]},
    ],
    "output": list(OUTPUTS),
}


def pairwise(factors: dict[str, list[Any]]) -> list[dict[str, Any]]:
    """Few rows such that any two choices of two factors stand in one of them; greedy, the same each time."""
    names = list(factors)
    rows = list(product(*(range(len(factors[name])) for name in names)))
    pairs_of = {row: {(i, row[i], j, row[j]) for i, j in combinations(range(len(names)), 2)} for row in rows}
    missing = set().union(*pairs_of.values())
    chosen = []
    while missing:
        best = max(rows, key=lambda row: len(pairs_of[row] & missing))
        chosen.append({name: factors[name][index] for name, index in zip(names, best, strict=True)})
        missing -= pairs_of[best]
    return chosen


class Net(nn.Module):
    """A body with a norm and dropout, and a head; [N, 6] -> scores [N, 3] somewhere in the output."""

    def __init__(self, output: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Linear(6, 12), nn.LayerNorm(12), nn.Tanh(), nn.Dropout(0.1))
        self.head = nn.Linear(12, 3)
        self.output = output

    def forward(self, x: Tensor) -> Any:
        return OUTPUTS[self.output](self.head(self.body(x)))


def scores(output: Any) -> Tensor:
    """The scores in whatever form of output."""
    while not isinstance(output, Tensor):
        output = output["logits"] if isinstance(output, dict) else output[0]
    return output


def is_gates(row: dict[str, Any]) -> bool:
    """Whether a row gates channels."""
    return isinstance(row["strategy"], dict) and row["strategy"].get("kind") == "gates"


ROWS = pairwise(FACTORS)


def test_every_pair_is_there() -> None:
    """The rows hold every two choices of two factors, and are far fewer than all combinations."""
    for one, other in combinations(FACTORS, 2):
        for pair in product(FACTORS[one], FACTORS[other]):
            assert any((row[one], row[other]) == pair for row in ROWS)
    assert len(ROWS) < 60


@pytest.mark.parametrize("row", ROWS, ids=lambda row: "-".join(map(str, row.values())))
def test_trains_saves_loads_exports(row: dict[str, Any], tmp_path: Path) -> None:
    """A legal combination changes the outputs in a few steps, which file and export give back; others are refused."""
    target = Net(row["output"])

    def model_of() -> MappingModel:
        return MappingModel(target, 24, row["strategy"], mapper=row["mapper"], modulation=row["modulation"])

    if is_gates(row) and row["modulation"] is not None:
        with pytest.raises(ConfigError, match="modulation: strategy 'finetune' of kind 'gates'"):
            model_of()
        return
    model = model_of()
    x, _ = targets.rows(24)
    target.eval()
    assert torch.equal(scores(model.eval()(x)), scores(target(x)))  # it starts as the target
    model.train()
    trainer = targets.trainer_of(model, targets.loader(), max_epochs=2, learning_rate=0.05, loss=row["loss"])
    history = trainer.fit()
    assert torch.tensor(history["train_loss"]).isfinite().all()
    model.eval()
    with torch.no_grad():
        output = scores(model(x))
        assert not torch.equal(output, scores(target(x)))
        torch.testing.assert_close(scores(model.export()(x)), output)
        model.save(tmp_path / "model.safetensors")
        loaded = MappingModel.load(tmp_path / "model.safetensors", target).eval()
        assert torch.equal(scores(loaded(x)), output)
