"""Strategies, pruning, mappers, modulations, losses and forms of output: every pair of choices meets in some run."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations, product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mapping_core import CallbackConfig, ConfigError, MappingModel
from mapping_plugin_pruning import Pruning, kept
from mapping_plugin_quantize import Quantizing
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
        {"type": "grouped", "groups": {"body": ["body"], "head": ["head"]}},
        {"type": "quantized", "strategy": "layerwise"},
        {"type": "finetune", "kind": "deltas"},
        {"type": "finetune", "kind": "deltas", "blocks": ["body"]},
        {"type": "finetune", "kind": "gates"},
    ],
    "pruning": [None, "magnitude", "channels", "n_m"],
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


def why_not(row: dict[str, Any]) -> str | None:
    """What the error of a row that cannot be built says; None for the others."""
    strategy = row["strategy"] if isinstance(row["strategy"], dict) else {}
    if "blocks" in strategy and row["pruning"] is not None:
        return r"'finetune' inside another one cannot choose what is mapped \(body\): use mapped="
    if strategy.get("kind") == "gates" and row["modulation"] is not None:
        return "modulation: strategy 'finetune' of kind 'gates'"
    return None


def pairwise(factors: dict[str, list[Any]]) -> list[dict[str, Any]]:
    """Few legal rows such that any two choices that may meet stand in one of them; greedy, the same each time."""
    names = list(factors)
    rows = [
        row for row in product(*(range(len(factors[name])) for name in names)) if why_not(chosen(factors, row)) is None
    ]
    pairs_of = {row: {(i, row[i], j, row[j]) for i, j in combinations(range(len(names)), 2)} for row in rows}
    missing = set().union(*pairs_of.values())
    best_rows = []
    while missing:
        best = max(rows, key=lambda row: len(pairs_of[row] & missing))
        best_rows.append(chosen(factors, best))
        missing -= pairs_of[best]
    return best_rows


def chosen(factors: dict[str, list[Any]], row: tuple[int, ...]) -> dict[str, Any]:
    """The choices that a row of indices stands for."""
    return {name: choices[index] for (name, choices), index in zip(factors.items(), row, strict=True)}


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


def strategy_of(row: dict[str, Any]) -> Any:
    """The strategy of a row, under masks where it prunes."""
    if row["pruning"] is None:
        return row["strategy"]
    return {"type": "pruned", "method": row["pruning"], "m": 2, "strategy": row["strategy"]}


def callbacks_of(row: dict[str, Any]) -> list[CallbackConfig]:
    """What prunes and quantises in a row, both before the run's end."""
    quantized = isinstance(row["strategy"], dict) and row["strategy"]["type"] == "quantized"
    pruning = [Pruning(keep=0.5, begin=0.2, end=0.8, every=1)] if row["pruning"] else []
    return [*pruning, *([Quantizing()] if quantized else [])]


ROWS = pairwise(FACTORS)


#: One choice of each factor that goes with everything.
PLAIN = {"strategy": "slvt", "pruning": None, "mapper": "srht", "modulation": None, "loss": "auto", "output": "tensor"}
PAIRS = [
    {**PLAIN, one: first, other: second}
    for one, other in combinations(FACTORS, 2)
    for first, second in product(FACTORS[one], FACTORS[other])
]


def test_every_pair_is_there() -> None:
    """The rows hold every two choices of two factors that may meet, and are far fewer than all combinations."""
    for one, other in combinations(FACTORS, 2):
        met = [(row[one], row[other]) for row in ROWS]
        for pair in product(FACTORS[one], FACTORS[other]):
            assert (pair in met) == (why_not({**PLAIN, one: pair[0], other: pair[1]}) is None)
    assert len(ROWS) < 80


def model_of(row: dict[str, Any]) -> tuple[Net, MappingModel]:
    """The target of a row, and its model."""
    target = Net(row["output"])
    return target, MappingModel(target, 24, strategy_of(row), mapper=row["mapper"], modulation=row["modulation"])


@pytest.mark.parametrize(
    "row", [row for row in PAIRS if why_not(row)], ids=lambda row: "-".join(map(str, row.values()))
)
def test_says_why_not(row: dict[str, Any]) -> None:
    """A pair that cannot work together is refused when the model is built, with the reason."""
    with pytest.raises(ConfigError, match=why_not(row)):
        model_of(row)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: "-".join(map(str, row.values())))
def test_trains_saves_loads_exports(row: dict[str, Any], tmp_path: Path) -> None:
    """A legal combination changes the outputs in a few steps, which file and export give back."""
    target, model = model_of(row)
    x, _ = targets.rows(24)
    target.eval()
    assert torch.equal(scores(model.eval()(x)), scores(target(x)))  # it starts as the target
    model.train()
    callbacks = callbacks_of(row)
    trainer = targets.trainer_of(
        model, targets.loader(), max_epochs=2, learning_rate=0.05, loss=row["loss"], callbacks=callbacks
    )
    history = trainer.fit()
    assert torch.tensor(history["train_loss"]).isfinite().all()
    model.eval()
    with torch.no_grad():
        output = scores(model(x))
        assert not torch.equal(output, scores(target(x)))
        if row["pruning"] is not None:
            assert kept(model) < sum(spec.numel for spec in model.layout.mapped)
        torch.testing.assert_close(scores(model.export()(x)), output)
        model.save(tmp_path / "model.safetensors")
        loaded = MappingModel.load(tmp_path / "model.safetensors", target).eval()
        assert torch.equal(scores(loaded(x)), output)
