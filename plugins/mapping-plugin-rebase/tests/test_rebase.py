"""The callback `rebase`: when it moves the base, and that a run with it can go on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import mapping_core
import mapping_core.builtin
import mapping_plugin_rebase
from mapping_core import Callback, CallbackConfig, ConfigError, Generator, GeneratorConfig, MappingModel, MappingTrainer
from mapping_core.config import structure, unstructure
from mapping_core.contexts import GeneratorContext
from mapping_core.one_latent import OneLatent
from mapping_core.registry import Registry
from mapping_plugin_rebase import Rebase


class One(GeneratorConfig):
    """The plainest strategy."""

    name = "one"

    def build(self, context: GeneratorContext) -> Generator:
        return OneLatent(context)


class _Supplies:
    @mapping_core.hookimpl
    def mapping_generators(self) -> list[type[GeneratorConfig]]:
        return [One]


REGISTRY = Registry.of(mapping_core.builtin, mapping_plugin_rebase, _Supplies())


def network() -> nn.Sequential:
    """Two linear layers; [N, 6] -> [N, 3]."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))


def batches() -> list[tuple[Tensor, Tensor]]:
    """Ten batches whose class is the largest of the first three numbers."""
    x = torch.randn(160, 6, generator=torch.Generator().manual_seed(0))
    return [(part, part[:, :3].argmax(1)) for part in torch.split(x, 16)]


class Watch(Callback):
    """Notes after every step how often the base moved and how large the latent is; stops the run at one."""

    def __init__(self, stop_at: int = -1) -> None:
        self.moved: list[int] = []
        self.still: list[int] = []
        self.stop_at = stop_at

    def on_batch_end(self, trainer: MappingTrainer, record: Any) -> None:
        model = trainer.model
        assert isinstance(model, MappingModel)
        self.moved.append(len(model.foldings.entries))
        if not model.latent.any():
            assert trainer.optimizer is not None
            assert model.latent not in trainer.optimizer.state
            self.still.append(record.step)
        if record.step == self.stop_at:
            trainer.stop("enough")


def trained(stop_at: int = -1, resume: str | None = None, **options: Any) -> tuple[MappingModel, Watch, MappingTrainer]:
    """Train for 40 steps with three moves."""
    model = MappingModel(network(), 30, One(), registry=REGISTRY)
    watch = Watch(stop_at)
    trainer = MappingTrainer(
        model,
        batches(),
        max_epochs=4,
        callbacks=["rebase", watch],
        seed=0,
        accelerator="cpu",
        progress=False,
        registry=REGISTRY,
        **options,
    )
    trainer.fit(resume=resume)
    return model, watch, trainer


def test_registered() -> None:
    """The plugin adds a callback, at core's version; object, name and table are one."""
    assert Registry.discover().callbacks.get("mapping-plugin-rebase:rebase") is Rebase
    assert mapping_plugin_rebase.__version__ == mapping_core.__version__
    assert structure(unstructure(Rebase(times=2)), Rebase, registry=REGISTRY) == Rebase(times=2)
    assert REGISTRY.resolve(CallbackConfig, "rebase") == Rebase()
    with pytest.raises(ValueError, match="times"):
        Rebase(times=0)


def test_moves_evenly_apart() -> None:
    """The base moves after 10, 20 and 30 of 40 steps; the latent and its moments start anew, and the loss falls."""
    model, watch, trainer = trained()
    assert watch.moved == [0] * 9 + [1] * 10 + [2] * 10 + [3] * 11
    assert watch.still == [10, 20, 30]
    assert [folding.seed for folding in model.foldings.entries] == [0, 1, 2]
    assert trainer.history["train_loss"][-1] < trainer.history["train_loss"][0]
    assert sum(parameter.numel() for parameter in model.parameters()) == 30


@pytest.mark.parametrize("stop_at", [5, 10, 25])
def test_resume(stop_at: int, tmp_path: Path) -> None:
    """A run that stopped before, at or after a move ends as if it had not, to the bit, and so does its file."""
    whole, _, _ = trained()
    trained(stop_at, run_dir=tmp_path, checkpoint_every=1)
    model, watch, _ = trained(resume="last", run_dir=tmp_path)
    assert len(watch.moved) == 40 - stop_at
    model.save(tmp_path / "model")
    whole.save(tmp_path / "whole")
    assert (tmp_path / "model").read_bytes() == (tmp_path / "whole").read_bytes()
    weights = whole.generate_weights()
    assert all(torch.equal(weight, weights[name]) for name, weight in model.generate_weights().items())


def test_more_moves_than_steps() -> None:
    """A short run moves at each step but its last."""
    model = MappingModel(network(), 30, One(), registry=REGISTRY)
    trainer = MappingTrainer(
        model, batches()[:3], max_epochs=1, callbacks=[Rebase(times=50)], accelerator="cpu", progress=False
    )
    trainer.fit()
    assert len(model.foldings.entries) == 2


def test_refusals() -> None:
    """Another model, or a run of unknown length, is refused before training."""

    class Endless:
        def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
            return iter(batches())

    for model, loader, message in (
        (network(), batches(), "callback 'rebase' needs a MappingModel, got Sequential"),
        (MappingModel(network(), 20, One(), registry=REGISTRY), Endless(), "must know how long the run is"),
    ):
        trainer = MappingTrainer(model, loader, callbacks=[Rebase()], accelerator="cpu", progress=False)
        with pytest.raises(ConfigError, match=message):
            trainer.fit()
