"""A mapped model in lightning's Trainer: as a part of a LightningModule, like any other module."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mapping_core import MappingModel
from tests import targets

pytest.importorskip("lightning", reason="an optional test dependency: pip install lightning")

import lightning


def norm(*more: nn.Module) -> nn.Sequential:
    """A network with running statistics; [N, 6] -> [N, 3]."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3), *more)


def dropouts() -> nn.Sequential:
    """The same with a dropout, and one that stays off."""
    module = norm(nn.Dropout(0.1), nn.Dropout(0.9))
    module[5].eval()
    return module


class Classifier(lightning.LightningModule):
    """Trains the network it is given, and notes the modes in which its modules run."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.modes: dict[str, list[list[bool]]] = {"fit": [], "validate": []}
        self.losses: list[float] = []

    def _loss(self, batch: tuple[Tensor, Tensor], stage: str) -> Tensor:
        x, classes = batch
        loss = nn.functional.cross_entropy(self.network(x), classes)
        if isinstance(self.network, MappingModel):
            self.modes[stage].append([module.training for module in self.network.skeleton.modules()])
        return loss

    def training_step(self, batch: Any, index: int) -> Tensor:
        loss = self._loss(batch, "fit")
        self.losses.append(loss.item())
        return loss

    def validation_step(self, batch: Any, index: int) -> None:
        self.log("val_loss", self._loss(batch, "validate"))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=0.1, weight_decay=0.0)


def trainer(folder: Path, **options: Any) -> lightning.Trainer:
    """Return a quiet trainer on the CPU."""
    given: dict[str, Any] = {"max_epochs": 3, "accelerator": "cpu", "devices": 1, "logger": False}
    given |= {"enable_progress_bar": False, "enable_model_summary": False}
    given |= {"enable_checkpointing": False, "default_root_dir": folder, **options}
    return lightning.Trainer(**given)


# what Lightning says of small data and of torch
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec"),
    pytest.mark.filterwarnings("ignore:You defined a `validation_step`"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:The number of training batches"),
]


@pytest.mark.parametrize("strategy", ["slvt", "layerwise"])
def test_trains_and_validates(tmp_path: Path, strategy: str) -> None:
    """The loss falls, and the optimiser had the latent alone."""
    model = MappingModel(dropouts(), 48, strategy)
    module = Classifier(model)
    engine = trainer(tmp_path, max_epochs=8)
    (before,) = engine.validate(module, targets.loader(), verbose=False)
    engine.fit(module, targets.loader(), targets.loader())
    (after,) = engine.validate(module, targets.loader(), verbose=False)
    assert after["val_loss"] < before["val_loss"] - 0.1
    assert [id(p) for group in engine.optimizers[0].param_groups for p in group["params"]] == [id(model.latent)]


def test_modes_after_validation(tmp_path: Path) -> None:
    """Each module trains in its own mode again after a validation, though Lightning sets no more than flags."""
    module = Classifier(MappingModel(dropouts(), 48))
    trainer(tmp_path, val_check_interval=1).fit(module, targets.loader(), targets.loader())
    training = [True] * 6 + [False]
    assert module.modes["fit"] == [training] * 9
    assert module.modes["validate"] == [[False] * 7] * len(module.modes["validate"])


def test_checkpoint_and_resume(tmp_path: Path) -> None:
    """A checkpoint holds latent and statistics, no weight; loaded it is the model, trained on it is the whole run."""
    whole = Classifier(MappingModel(norm(), 48))
    trainer(tmp_path, max_epochs=2).fit(whole, targets.loader())
    half = Classifier(MappingModel(norm(), 48))
    engine = trainer(tmp_path, max_epochs=1)
    engine.fit(half, targets.loader())
    path = tmp_path / "half.ckpt"
    engine.save_checkpoint(path)
    assert set(torch.load(path, weights_only=True)["state_dict"]) == {
        "network.latent",
        *(f"network.target.tracked.1.{leaf}" for leaf in ("running_mean", "running_var", "num_batches_tracked")),
    }
    x, _ = targets.rows()
    loaded = Classifier.load_from_checkpoint(path, weights_only=True, network=MappingModel(norm(), 48)).eval()
    assert torch.equal(loaded.network(x), half.eval().network(x))
    resumed = Classifier(MappingModel(norm(), 48))
    trainer(tmp_path, max_epochs=2).fit(resumed, targets.loader(), ckpt_path=path, weights_only=True)
    assert half.losses + resumed.losses == whole.losses
    assert torch.equal(resumed.eval().network(x), whole.eval().network(x))


def test_mixed_precision(tmp_path: Path) -> None:
    """Under bf16 autocast the latent and its gradient stay float32, and the loss falls."""
    model = MappingModel(targets.mlp(), 24)
    module = Classifier(model)
    trainer(tmp_path, precision="bf16-mixed", max_epochs=6).fit(module, targets.loader())
    assert model.latent.dtype == torch.float32
    assert module.losses[-1] < module.losses[0]
