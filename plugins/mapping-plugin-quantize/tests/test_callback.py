"""The callback `quantize`: its plan, and what it does to a run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

from mapping_core import Callback, ConfigError, MappingModel, MappingTrainer
from mapping_plugin_quantize import Quantized, Quantizing
from mapping_plugin_quantize._callback import plan
from mapping_plugin_quantize._generator import STEPS, QuantizedGenerator


def network() -> nn.Sequential:
    """Two linear layers; [N, 6] -> [N, 3]."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))


def batches() -> list[tuple[Tensor, Tensor]]:
    """Ten batches whose class is the largest of the first three numbers."""
    x = torch.randn(160, 6, generator=torch.Generator().manual_seed(0))
    return [(part, part[:, :3].argmax(1)) for part in torch.split(x, 16)]


class Watch(Callback):
    """Notes the bits in use and the steps' numbers after every step; stops the run at one."""

    def __init__(self, stop_at: int = -1) -> None:
        self.bits: list[int] = []
        self.steps: list[float] = []
        self.stop_at = stop_at

    def on_batch_end(self, trainer: MappingTrainer, record: Any) -> None:
        model = trainer.model
        assert isinstance(model, MappingModel)
        assert isinstance(model.generator, QuantizedGenerator)
        self.bits.append(int(model.generator.grid[1, 0]))
        self.steps.append(float(model.latents[STEPS].detach()[0]))
        if record.step == self.stop_at:
            trainer.stop("enough")


def trained(
    config: Quantizing, *, bits: int = 3, stop_at: int = -1, resume: str | None = None, **options: Any
) -> tuple[MappingModel, Watch, MappingTrainer]:
    """Train for 40 steps under a schedule."""
    model = MappingModel(network(), 60, Quantized(bits=bits))
    watch = Watch(stop_at)
    trainer = MappingTrainer(
        model,
        batches(),
        max_epochs=4,
        callbacks=[config, watch],
        seed=0,
        accelerator="cpu",
        progress=False,
        **options,
    )
    trainer.fit(resume=resume)
    return model, watch, trainer


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_at_once(bits: int) -> None:
    """The grid is there from its step on, its steps train, the loss falls, and the history knows the bytes."""
    model, watch, trainer = trained(Quantizing(begin=0.25), bits=bits)
    assert watch.bits == [0] * 9 + [bits] * 31
    assert not any(watch.steps[:10])
    assert all(watch.steps[10:])
    assert trainer.history["train_loss"][-1] < trainer.history["train_loss"][0]
    assert trainer.history.file_bytes == model.file_bytes()


def test_falling_bits() -> None:
    """Bits fall one at a time from 8 to the strategy's, and the steps' numbers start anew each time."""
    _, watch, _ = trained(Quantizing(begin=0.25, end=0.75), bits=4)
    assert watch.bits == [0] * 9 + [8] * 5 + [7] * 5 + [6] * 5 + [5] * 5 + [4] * 11
    assert [index for index in range(9, 40) if watch.steps[index] == 0] == [9, 14, 19, 24, 29]


def test_before_the_first_step() -> None:
    """A schedule that begins at 0 quantises the start, which is 0, by any step."""
    _, watch, trainer = trained(Quantizing(begin=0.0))
    assert set(watch.bits) == {3}
    assert trainer.history["train_loss"][-1] < trainer.history["train_loss"][0]


@pytest.mark.parametrize("stop_at", [5, 10, 17])
def test_resume(stop_at: int, tmp_path: Path) -> None:
    """A run that stopped before, at or after its grid ends as if it had not, to the bit, and so does its file."""
    config = Quantizing(begin=0.25, end=0.5)
    whole, _, _ = trained(config, bits=6)
    trained(config, bits=6, stop_at=stop_at, run_dir=tmp_path, checkpoint_every=1)
    model, watch, _ = trained(config, bits=6, run_dir=tmp_path, resume="last")
    assert len(watch.bits) == 40 - stop_at
    assert torch.equal(model.latent_vector(), whole.latent_vector())
    model.save(tmp_path / "model")
    whole.save(tmp_path / "whole")
    assert (tmp_path / "model").read_bytes() == (tmp_path / "whole").read_bytes()


def test_checkpoints_hold_the_latent_as_it_trains(tmp_path: Path) -> None:
    """A checkpoint has the float32 numbers, which training goes on with; it loads as a model too."""
    model, _, _ = trained(Quantizing(), run_dir=tmp_path)
    (folder,) = (tmp_path / "checkpoints").glob("step-*40")
    assert torch.equal(safetensors.torch.load_file(folder / "model.safetensors")["latent"], model.latent)
    loaded = MappingModel.load(folder / "model.safetensors", network())
    weights = model.generate_weights()
    assert all(torch.equal(weight, weights[name]) for name, weight in loaded.generate_weights().items())


def test_refusals() -> None:
    """Without the strategy, or without a length of the run, training does not start."""

    class Endless:
        def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
            return iter(batches())

    for model, loader, message in (
        (network(), batches(), "needs the strategy 'quantized' of a MappingModel"),
        (MappingModel(network(), 20, "quantized"), Endless(), "must know how long the run is: set max_steps"),
    ):
        trainer = MappingTrainer(model, loader, callbacks=["quantize"], accelerator="cpu", progress=False)
        with pytest.raises(ConfigError, match=message):
            trainer.fit()


@pytest.mark.parametrize(
    ("options", "message"),
    [({"begin": 1.5}, "begin"), ({"end": -0.1}, "end"), ({"begin": 0.5, "end": 0.4}, "'end' must not be before")],
)
def test_wrong_values(options: dict[str, Any], message: str) -> None:
    """Values out of range or in the wrong order are errors of the configuration."""
    with pytest.raises(ValueError, match=message):
        Quantizing(**options)


@pytest.mark.parametrize("total", [1, 3, 10, 1000])
@pytest.mark.parametrize("end", [None, 0.2, 0.9])
@pytest.mark.parametrize("fewest", [1, 4, 8])
def test_plans(fewest: int, end: float | None, total: int) -> None:
    """Every plan ends at the bits asked for, within the run, and never goes up."""
    made = plan(Quantizing(begin=0.2, end=end), fewest, total)
    assert list(made) == sorted(made)
    assert all(0 <= step <= total for step in made)
    assert list(made.values()) == sorted(made.values(), reverse=True)
    assert list(made.values())[-1] == fewest
