"""A mapper, a modulation and a callback of your own.

    python cookbook/custom_components.py

A component is a small frozen class with options and a `build`; an object of it goes where a name would. To use it by
name, in a file or from another program, put it into a plugin: a module with hooks, here made by hand.
Runs on scikit-learn's digits in about ten seconds.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

import torch
from attrs import define, field
from attrs.validators import gt
from torch import Tensor

import mapping_core.builtin
import mapping_plugin_slvt
from mapping_core import (
    Callback,
    Mapper,
    MapperConfig,
    MappingModel,
    MappingTrainer,
    Modulation,
    ModulationConfig,
    Registry,
    hookimpl,
)
from mapping_core.contexts import MapperContext, ModulationContext
from mapping_core.random import RandomStream
from mapping_core.reference.data import digits
from mapping_core.reference.models import DigitsCNN
from mapping_core.training.history import EpochRecord


@define(frozen=True, kw_only=True)
class Cyclic(MapperConfig):
    """Each weight is one number of the latent, in turn, with a sign."""

    name = "cyclic"

    def build(self, context: MapperContext) -> Mapper:
        return CyclicMapper(context)


class CyclicMapper(Mapper):
    """Row i has one entry, a seeded sign at i modulo d: unit gain, and 0 goes to 0."""

    signs: Tensor

    def __init__(self, context: MapperContext) -> None:
        super().__init__(context.in_features, context.out_features)
        # All that is random comes from the context's seed: the same seed is the same mapping everywhere.
        drawn = RandomStream(context.seed, context.stream, purpose=1).normal(self.out_features)
        self.register_buffer("signs", drawn.sign().to(torch.int8), persistent=False)

    def forward(self, z: Tensor) -> Tensor:
        index = torch.arange(self.out_features, device=z.device) % self.in_features
        return z[..., index] * self.signs


@define(frozen=True, kw_only=True)
class Brake(ModulationConfig):
    """Changes shrink as the latent grows; small ones are as they are."""

    name = "brake"
    norm: float = field(default=100.0, validator=gt(0.0))

    def build(self, context: ModulationContext) -> Modulation:
        return BrakeModulation(self.norm)


class BrakeModulation(Modulation):
    """``delta / (1 + |z| / norm)``."""

    def __init__(self, norm: float) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, delta: dict[str, Tensor], z: Tensor, base: Mapping[str, Tensor]) -> dict[str, Tensor]:
        factor = 1 / (1 + z.norm(dim=-1) / self.norm)
        return {name: each * factor.reshape(factor.shape + (1,) * base[name].ndim) for name, each in delta.items()}


class LatentNorm(Callback):
    """Notes the latent's norm after each epoch."""

    def __init__(self) -> None:
        self.norms: list[float] = []

    def on_epoch_end(self, trainer: MappingTrainer, record: EpochRecord) -> None:
        assert isinstance(trainer.model, MappingModel)
        self.norms.append(float(trainer.model.latent_vector().norm()))


class Plugin:
    """What a published plugin's module would hold as functions; see docs/plugins.md."""

    @hookimpl
    def mapping_mappers(self) -> list[type[MapperConfig]]:
        return [Cyclic]

    @hookimpl
    def mapping_modulations(self) -> list[type[ModulationConfig]]:
        return [Brake]


def main(epochs: int = 10) -> float:
    """Train with all three, save, load, and return the accuracy on the held-out quarter."""
    train_loader, held_out = digits()
    registry = Registry.of(mapping_core.builtin, mapping_plugin_slvt, Plugin())
    torch.manual_seed(0)
    network = DigitsCNN()
    model = MappingModel(
        network, latent_dim=1024, strategy="slvt", mapper="cyclic", modulation=Brake(norm=200.0), registry=registry
    )
    norms = LatentNorm()
    trainer = MappingTrainer(
        model, train_loader, held_out, max_epochs=epochs, seed=0, callbacks=[norms], progress=False, registry=registry
    )
    history = trainer.fit()
    print("norms", *(f"{norm:.1f}" for norm in norms.norms))

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "digits.safetensors"
        model.save(path)  # names and options of the components stand in the file
        again = MappingModel.load(path, network, registry=registry)
    images, labels = next(iter(held_out))
    with torch.no_grad():
        accuracy = float((again.eval()(images).argmax(1) == labels).float().mean())
    assert abs(accuracy - history["val_accuracy"][-1]) < 1e-6
    return accuracy


if __name__ == "__main__":
    print(f"accuracy {100 * main():.1f} %")
