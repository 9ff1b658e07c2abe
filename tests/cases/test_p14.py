"""P14: a compiled model under the losses. Source: packages whose mapping breaks the graph.

Every loss is on, the terms of the mapping loss and their sum with learned weights too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from mapping_core import MappingModel
from mapping_core.training.optimization import default_learning_rate, default_optimizer
from tests import targets


@pytest.fixture(autouse=True)
def _fresh_compiler() -> None:
    """Begin without earlier graphs."""
    torch.compiler.reset()


MAKES: dict[str, Callable[[], nn.Module]] = {
    "mlp": targets.mlp,
    "norm": lambda: nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)),
    "residual": targets.Residual,
    "scalars": targets.Scalars,
}


@pytest.mark.parametrize("name", MAKES)
def test_trains_in_one_graph(name: str) -> None:
    """A step with its loss is one graph without a break, and follows the same path as without compilation."""
    torch.manual_seed(0)
    target = MAKES[name]()
    x, labels = targets.rows(24)
    losses: dict[bool, list[float]] = {}
    for compiled in (False, True):
        model = MappingModel(target, 16)

        def step(model: MappingModel = model) -> torch.Tensor:
            return functional.cross_entropy(model(x), labels)

        run = torch.compile(step, backend="aot_eager", fullgraph=True) if compiled else step
        optimizer = default_optimizer(model)
        losses[compiled] = []
        for _ in range(6):
            optimizer.zero_grad()
            loss = run()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            losses[compiled].append(float(loss.detach()))
    assert losses[True][-1] < losses[True][0]
    torch.testing.assert_close(losses[True], losses[False], rtol=1e-3, atol=1e-4)


LOSSES: list[Any] = ["cross_entropy", "auto", "mapping", {"type": "mapping", "learned": True}]


@pytest.mark.parametrize("loss", LOSSES, ids=str)
def test_through_the_trainer(loss: Any) -> None:
    """A compiled model goes through `MappingTrainer` with the learning rate, and the history, of the plain one."""
    histories = []
    for compiled in (False, True):
        model = MappingModel(targets.mlp(), 16)
        wrapped = torch.compile(model, backend="aot_eager") if compiled else model
        assert default_learning_rate(wrapped) == default_learning_rate(model)  # type: ignore[arg-type]
        histories.append(targets.trainer_of(wrapped, None, targets.loader(), loss=loss).fit())  # type: ignore[arg-type]
    plain, compiled_one = histories
    assert compiled_one["train_loss"][-1] < compiled_one["train_loss"][0]
    torch.testing.assert_close(compiled_one["train_loss"], plain["train_loss"], rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(compiled_one["val_loss"], plain["val_loss"], rtol=1e-3, atol=1e-4)


def test_lazy_generation_gives_way() -> None:
    """A lazy model that is compiled generates everything at once, with the same gradient."""
    x, labels = targets.rows(24)
    grads = []
    for lazy in (False, True):
        model = targets.moved(MappingModel(targets.mlp(), 16, lazy=lazy))
        functional.cross_entropy(torch.compile(model, backend="aot_eager")(x), labels).backward()  # type: ignore[no-untyped-call]
        assert model.latent.grad is not None
        grads.append(model.latent.grad)
    torch.testing.assert_close(grads[0], grads[1])
