"""D6: modes after an evaluation. Source: Lightning issue 2551 (train() after evaluation)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from mapping_core import Callback, MappingModel
from tests import targets


def target() -> nn.Sequential:
    """Return two norms and two dropouts, of each the second one in evaluation mode by the user."""
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Dropout(0.1), nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Dropout(0.1)
    )
    module[4].eval()
    module[5].eval()
    return module


class Modes(Callback):
    """Notes the modes of all modules at every event of training and validation."""

    def __init__(self, model: MappingModel) -> None:
        self.model = model
        self.training: list[list[bool]] = []
        self.validating: list[list[bool]] = []

    def _now(self) -> list[bool]:
        return [module.training for module in self.model.skeleton.children()]

    def on_batch_start(self, trainer: Any, batch: Any) -> None:
        self.training.append(self._now())

    def on_epoch_end(self, trainer: Any, record: Any) -> None:
        self.training.append(self._now())


@pytest.mark.parametrize("policy", ["frozen", "tracked"])
def test_each_module_keeps_its_mode(policy: str) -> None:
    """Two epochs with validation leave every mode as the user set it, and his norm's statistics too."""
    model = MappingModel(target(), 24, buffers=policy)
    modes = Modes(model)
    targets.trainer_of(model, None, targets.loader(), callbacks=[modes]).fit()
    assert len(modes.training) == 2 * (3 + 1)
    assert all(seen == [True, True, True, True, False, False] for seen in modes.training)
    exported = model.export()
    assert not exported.get_buffer("4.running_mean").any()
    assert int(exported.get_buffer("4.num_batches_tracked")) == 0
    assert int(exported.get_buffer("1.num_batches_tracked")) == 6
    assert [module.training for module in exported.children()] == [True, True, True, True, False, False]


def test_an_estimated_norm_stays_put_through_train_and_eval() -> None:
    """A norm with an estimate, kept in evaluation mode by the policy, is so after `train()`, `eval()`, `fit()`."""
    model = MappingModel(targets.estimated_conv_norm(), 16)
    before = model.export().get_buffer("1.running_mean")
    for step in (model.train, model.eval, model.train):
        step()
        assert not model.skeleton.get_submodule("1").training
    x = torch.randn(8, 1, 6, 6)
    targets.trainer_of(model, [(x, torch.arange(8) % 3)], [(x, torch.arange(8) % 3)]).fit()
    assert not model.skeleton.get_submodule("1").training
    assert model.skeleton.get_submodule("0").training
    assert torch.equal(model.export().get_buffer("1.running_mean"), before)


def test_validate_alone() -> None:
    """`validate` outside of `fit` evaluates, and puts every mode back, also when the loader fails."""
    model = MappingModel(target(), 24)
    trainer = targets.trainer_of(model)
    modes = [module.training for module in model.skeleton.modules()]
    trainer.validate(targets.loader())

    def failing() -> Any:
        yield next(iter(targets.loader()))
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        trainer.validate(failing())
    assert [module.training for module in model.skeleton.modules()] == modes
    assert model.training
