"""P6: fine-tuning. Source: mappings that destroy a pretrained network before the first step."""

from __future__ import annotations

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


@pytest.mark.parametrize("strategy", Registry.discover().generators.names())
@pytest.mark.parametrize("mapper", Registry.discover().mappers.names())
@pytest.mark.parametrize(
    "options", [{}, {"trained": "6"}, {"mapped": nn.Linear}, {"lazy": True}, {"buffers": "tracked"}]
)
def test_starts_as_the_pretrained_network(strategy: str, mapper: str, options: dict[str, object]) -> None:
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
