"""Components of a stranger's plugin, one of each kind that a training run uses."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from attrs import define, field
from attrs.validators import gt
from torch import Tensor

import mapping_core.builtin
import mapping_plugin_slvt
from mapping_core import (
    Callback,
    CallbackConfig,
    Loss,
    LossConfig,
    Mapper,
    MapperConfig,
    MappingModel,
    MappingTrainer,
    Modulation,
    ModulationConfig,
    Registry,
    hookimpl,
)
from mapping_core.config import RunConfig, structure
from mapping_core.contexts import CallbackContext, LossContext, MapperContext, ModulationContext
from mapping_core.interfaces.loss import LossStep
from mapping_core.random import RandomStream
from tests import targets


@define(frozen=True, kw_only=True)
class Gaussian(MapperConfig):
    """A dense Gaussian map."""

    name = "gaussian"
    gain: float = field(default=1.0, validator=gt(0.0))

    def build(self, context: MapperContext) -> Mapper:
        return GaussianMapper(context, self.gain)


class GaussianMapper(Mapper):
    """``gain * W z / sqrt(d)``."""

    weight: Tensor

    def __init__(self, context: MapperContext, gain: float) -> None:
        super().__init__(context.in_features, context.out_features)
        d, n = self.in_features, self.out_features
        numbers = RandomStream(context.seed, context.stream, purpose=99).normal(n * d).float()
        self.register_buffer("weight", gain * numbers.view(n, d) / d**0.5, persistent=False)

    def forward(self, z: Tensor) -> Tensor:
        return z @ self.weight.to(z.dtype).T


@define(frozen=True, kw_only=True)
class Gain(ModulationConfig):
    """One gain a parameter tensor, which follows the latent's mean."""

    name = "gain"

    def build(self, context: ModulationContext) -> Modulation:
        return GainModulation(context.in_features)


class GainModulation(Modulation):
    """``delta * (1 + mean(z))``; delta itself at 0."""

    def __init__(self, in_features: int) -> None:
        super().__init__()
        self.in_features = in_features

    def forward(self, delta: dict[str, Tensor], z: Tensor, base: Mapping[str, Tensor]) -> dict[str, Tensor]:
        assert z.shape[-1] == self.in_features
        assert all(delta[name].shape[z.ndim - 1 :] == base[name].shape for name in delta)
        gain = 1 + z.mean(dim=-1)
        return {name: each * gain.reshape(gain.shape + (1,) * base[name].ndim) for name, each in delta.items()}


@define(frozen=True, kw_only=True)
class Absolute(LossConfig):
    """The absolute error to one-hot classes, and a pull of the latent to 0."""

    name = "absolute"
    pull: float = 0.01

    def build(self, context: LossContext) -> Loss:
        assert isinstance(context.model, torch.nn.Module)
        return AbsoluteLoss(self.pull)


class AbsoluteLoss(Loss):
    """The loss of `Absolute`."""

    def __init__(self, pull: float) -> None:
        super().__init__()
        self.pull = pull

    def forward(self, step: LossStep) -> Tensor:
        goal = torch.nn.functional.one_hot(step.targets, 3).to(step.predictions.dtype)
        penalty = sum(z.square().sum() for z in step.latents.values())
        loss: Tensor = (step.predictions - goal).abs().mean() + self.pull * penalty
        return loss

    def items(self, step: LossStep) -> int:
        return len(step.targets)

    def metrics(self, step: LossStep) -> dict[str, Tensor]:
        return {"largest": step.predictions.detach().abs().max()}


@define(frozen=True, kw_only=True)
class Norms(CallbackConfig):
    """Writes the latent's norm of every epoch to a file in the run's folder."""

    name = "norms"
    file: str = "norms.txt"

    def build(self, context: CallbackContext) -> Callback:
        assert context.run_dir is not None
        return NormsCallback(context.run_dir / self.file)


class NormsCallback(Callback):
    """The callback of `Norms`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_epoch_end(self, trainer: MappingTrainer, record: Any) -> None:
        assert isinstance(trainer.model, MappingModel)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(f"{trainer.model.latent_vector().norm():.6f}\n")


class Plugin:
    """What the stranger's distribution registers."""

    @staticmethod
    @hookimpl
    def mapping_mappers() -> list[type[MapperConfig]]:
        """Return the mapper."""
        return [Gaussian]

    @staticmethod
    @hookimpl
    def mapping_modulations() -> list[type[ModulationConfig]]:
        """Return the modulation."""
        return [Gain]

    @staticmethod
    @hookimpl
    def mapping_losses() -> list[type[LossConfig]]:
        """Return the loss."""
        return [Absolute]

    @staticmethod
    @hookimpl
    def mapping_callbacks() -> list[type[CallbackConfig]]:
        """Return the callback."""
        return [Norms]


@pytest.fixture
def registry() -> Registry:
    """Give core, one strategy and the stranger's plugin."""
    return Registry.of(mapping_core.builtin, mapping_plugin_slvt, Plugin)


def test_all_of_them_in_one_run(registry: Registry, tmp_path: Path) -> None:
    """A stranger's mapper, modulation, loss and callback train a network, by name, table and object."""
    target = targets.mlp()
    model = MappingModel(
        target, 16, "slvt", mapper={"type": "gaussian", "gain": 2.0}, modulation=Gain(), registry=registry
    )
    x, _ = targets.rows()
    assert torch.equal(model(x), target(x))
    trainer = MappingTrainer(
        model,
        targets.loader(),
        targets.loader(10),
        loss={"type": "absolute", "pull": 0.001},
        callbacks=["norms"],
        learning_rate=0.05,
        max_epochs=5,
        run_dir=tmp_path,
        accelerator="cpu",
        progress=False,
        seed=0,
        registry=registry,
    )
    history = trainer.fit()
    assert history["train_loss"][-1] < history["train_loss"][0]
    assert set(history.last.validation) == {"loss", "largest"}
    norms = (tmp_path / "norms.txt").read_text(encoding="utf-8").split()
    assert len(norms) == 5
    assert float(norms[-1]) == pytest.approx(float(model.latent_vector().norm()), abs=1e-5)
    assert model.suppliers["modulation"] is not None
    assert model.suppliers["modulation"] != model.suppliers["strategy"]


def test_saved_and_loaded(registry: Registry, tmp_path: Path) -> None:
    """A model with a stranger's components is loaded with their settings, by whoever has the plugin."""
    model = MappingModel(targets.mlp(), 16, "slvt", mapper=Gaussian(gain=2.0), modulation="gain", registry=registry)
    with torch.no_grad():
        model.latent.normal_()
    model.save(tmp_path / "m")
    loaded = MappingModel.load(tmp_path / "m", targets.mlp(), registry=registry)
    x, _ = targets.rows()
    assert torch.equal(loaded(x), model(x))
    assert (loaded.mapper, loaded.modulation) == (Gaussian(gain=2.0), Gain())
    with pytest.raises(ValueError, match=r"no m.* named 'ga.*' is installed"):
        MappingModel.load(tmp_path / "m", targets.mlp())


def test_modulated_weights_under_vmap(registry: Registry) -> None:
    """A modulation serves many latents at once, in float64 with the derivative of finite differences."""
    model = MappingModel(targets.mlp(), 8, "slvt", modulation="gain", registry=registry).double()
    z = torch.randn(3, 8, dtype=torch.float64)
    many = model.generate_weights({"z": z})
    assert many["0.weight"].shape == (3, 8, 6)
    torch.testing.assert_close(many["0.weight"][1], model.generate_weights({"z": z[1]})["0.weight"])
    assert torch.autograd.gradcheck(lambda z: model.generate_weights({"z": z})["2.bias"], z.requires_grad_())


def test_generated_lazily(registry: Registry) -> None:
    """A mapper that knows nothing of lazy generation serves it, with a modulation too."""
    options: dict[str, Any] = {"mapper": "gaussian", "modulation": "gain", "registry": registry}
    eager, late = (MappingModel(targets.mlp(), 8, "slvt", lazy=lazy, **options) for lazy in (False, True))
    with torch.no_grad():
        eager.latent.normal_()
        late.latent.copy_(eager.latent)
    x, _ = targets.rows()
    assert torch.equal(late(x), eager(x))


def test_in_toml(registry: Registry) -> None:
    """The same components stand in a run's configuration as names and tables."""
    config = structure(
        {
            "target": "cnn2",
            "data": "mnist",
            "latent_dim": 16,
            "strategy": "slvt",
            "mapper": {"type": "gaussian", "gain": 3.0},
            "modulation": "gain",
            "trainer": {"loss": "absolute", "callbacks": [{"type": "norms", "file": "n.txt"}]},
        },
        RunConfig,
        registry=registry,
    )
    assert config.mapper == Gaussian(gain=3.0)
    assert config.modulation == Gain()
    assert config.trainer.loss == Absolute()
    assert config.trainer.callbacks == (Norms(file="n.txt"),)
