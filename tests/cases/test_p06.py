"""P6: fine-tuning. Source: mappings that destroy a pretrained network before the first step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from mapping_core import MappingModel, Registry
from mapping_core.training.optimization import default_optimizer
from tests import targets


def pretrained() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """Return a network with norms after some training, and its data."""
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 8), nn.LayerNorm(8), nn.PReLU(), nn.Linear(8, 3)
    )
    x, labels = targets.rows(96)
    optimizer = torch.optim.Adam(module.parameters(), lr=0.02)
    for _ in range(40):
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(x), labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return module.eval(), x, labels


STRATEGIES: list[object] = [
    "slvt",
    "layerwise",
    {"type": "grouped", "groups": {"first": ["0"], "rest": ["*"]}},
    {"type": "lrd", "rank": 2},
    {"type": "pruned", "strategy": "layerwise"},
    {"type": "quantized", "strategy": "layerwise"},
    {"type": "finetune", "kind": "gates"},
    {"type": "finetune", "kind": "deltas", "blocks": ["0"]},
]
MAPPERS = [name for name in Registry.discover().mappers.names() if name != "trajectory"]  # which needs a file
OPTIONS: list[dict[str, object]] = [{"trained": "6"}, {"mapped": nn.Linear}, {"lazy": True}, {"buffers": "tracked"}]


@pytest.mark.parametrize(
    ("strategy", "mapper", "options"),
    [
        *((strategy, "srht", {}) for strategy in STRATEGIES),
        *(("layerwise", mapper, {}) for mapper in MAPPERS),
        *(
            (strategy, "srht", options)
            for strategy in ("layerwise", STRATEGIES[3], STRATEGIES[4])
            for options in OPTIONS
        ),
    ],
    ids=str,
)
def test_starts_as_the_pretrained_network(strategy: Any, mapper: str, options: dict[str, object]) -> None:
    """Before step 1 outputs, hence accuracy, are the pretrained ones exactly, whatever is configured."""
    module, x, labels = pretrained()
    assert (module(x).argmax(1) == labels).float().mean() > 0.9
    model = MappingModel(module, 60, strategy, mapper=mapper, **options)  # type: ignore[arg-type]
    assert torch.equal(model.eval()(x), module(x))
    assert torch.equal(model.export()(x), module(x))


def test_the_first_step_leaves_the_network_nearly_as_good() -> None:
    """A small first step changes the loss a little, and not to that of a network that knows nothing."""
    module, x, labels = pretrained()
    model = MappingModel(module, 60)
    before = float(nn.functional.cross_entropy(model(x), labels).detach())
    optimizer = default_optimizer(model, learning_rate=1e-3)
    nn.functional.cross_entropy(model(x), labels).backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    after = float(nn.functional.cross_entropy(model(x), labels).detach())
    assert after < before
