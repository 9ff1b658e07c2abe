"""The mapper `trajectory`: recording a run, its basis, and models on that basis."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import mapping_core
import mapping_core.builtin
import mapping_plugin_mappers
from mapping_core import (
    BudgetError,
    ConfigError,
    FileFormatError,
    Generator,
    GeneratorConfig,
    MapperConfig,
    MappingModel,
    MappingTrainer,
    NonFiniteError,
    Registry,
    TargetError,
)
from mapping_core.contexts import GeneratorContext, MapperContext
from mapping_core.one_latent import OneLatent
from mapping_plugin_mappers import Trajectory
from mapping_plugin_mappers.trajectory import TrajectoryRecorder


class One(GeneratorConfig):
    """One latent for all, as `slvt`, which is not there when this plugin is tested alone."""

    name = "one"

    def build(self, context: GeneratorContext) -> Generator:
        return OneLatent(context)


class FirstLayer(GeneratorConfig):
    """Begins with a latent for the first layer alone."""

    name = "first_layer"

    def build(self, context: GeneratorContext) -> Generator:
        context.expansion(context.layout.mapped[:2], context.latent_dim, stream=0)
        return OneLatent(context)


class _Supplies:
    @mapping_core.hookimpl
    def mapping_generators(self) -> list[type[GeneratorConfig]]:
        return [One]


REGISTRY = Registry.of(mapping_core.builtin, mapping_plugin_mappers, _Supplies())


def network() -> nn.Sequential:
    """A small network; [N, 4] -> [N, 2], 72 weights."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 2, bias=False))


def recorded(snapshots: int = 6) -> tuple[nn.Sequential, TrajectoryRecorder]:
    """A network after a walk at random, and what was recorded of it."""
    module = network()
    recorder = TrajectoryRecorder(module)
    generator = torch.Generator().manual_seed(1)
    for _ in range(snapshots):
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.1)
        recorder.record()
    return module, recorder


@pytest.fixture
def basis(tmp_path: Path) -> Path:
    """Give the file of a basis of 6 directions for `network`."""
    path = tmp_path / "basis.safetensors"
    recorded()[1].save(path, 6)
    return path


def flat(module: nn.Module) -> Tensor:
    """All parameters as one vector."""
    return torch.cat([parameter.detach().flatten() for parameter in module.parameters()])


def test_the_recorded_weights_can_be_reached(basis: Path) -> None:
    """With as many numbers as snapshots a latent exists that gives the trained weights, across layers of any scale."""
    trained, _ = recorded()
    model = MappingModel(network(), 6, One(), mapper=Trajectory(path=basis))
    moved = flat(trained) - flat(network())
    jacobian = torch.func.jacrev(
        lambda z: torch.cat([weight.flatten() for weight in model.generate_weights({"z": z}).values()])
    )(torch.zeros(6))
    latent = torch.linalg.lstsq(jacobian, moved[:, None]).solution
    torch.testing.assert_close((jacobian @ latent).flatten(), moved, atol=1e-5, rtol=1e-4)
    first = MappingModel(network(), 1, One(), mapper=Trajectory(path=basis))
    with torch.no_grad():
        first.latent.fill_(1.0)
    weights = torch.cat([weight.flatten() for weight in first.generate_weights().values()]) - flat(network())
    torch.testing.assert_close(weights, jacobian[:, 0] * math.sqrt(6), atol=1e-5, rtol=1e-4)


def test_directions_are_the_principal_ones() -> None:
    """They are the right singular vectors of the movements, each weight in units of its row scale, largest first."""
    _, recorder = recorded()
    directions, spreads = recorder.directions()
    torch.testing.assert_close(directions @ directions.T, torch.eye(6), atol=1e-5, rtol=0)
    values, vectors = torch.linalg.svd(torch.stack(recorder._moves), full_matrices=False)[1:]
    torch.testing.assert_close(spreads, values, rtol=1e-4, atol=0)
    torch.testing.assert_close((directions * vectors).sum(1).abs(), torch.ones(6), rtol=1e-4, atol=0)
    scale = 1 / math.sqrt(3 * 4)
    trained, _ = recorded()
    first = (flat(trained) - flat(network()))[:32] / scale
    torch.testing.assert_close(recorder._moves[-1][:32], first)


def test_isometry(basis: Path) -> None:
    """G'G = (n/d) I for any number of the directions, and the mean squared norm of rows is 1."""
    for d in (1, 3, 6):
        mapper = Trajectory(path=basis).build(MapperContext(in_features=d, out_features=72, seed=0))
        g = mapper(torch.eye(d)).T
        torch.testing.assert_close(g.T @ g, 72 / d * torch.eye(d), atol=1e-4, rtol=0)


def test_repeated_snapshots_add_no_direction(tmp_path: Path) -> None:
    """What lies in one line is one direction, and asking for more is refused before anything is written."""
    module = network()
    recorder = TrajectoryRecorder(module)
    with pytest.raises(BudgetError, match="nothing was recorded"):
        recorder.directions()
    for _ in range(3):
        with torch.no_grad():
            module.get_parameter("0.weight").add_(0.5)
        recorder.record()
    assert len(recorder.directions()[0]) == 1
    for count in (0, 2):
        with pytest.raises(BudgetError, match=f"3 snapshots gave 1 directions, {count} were asked for"):
            recorder.save(tmp_path / "b", count)
    assert not (tmp_path / "b").exists()


def test_weights_that_are_not_finite(tmp_path: Path) -> None:
    """A run that diverged is refused where it is recorded."""
    module = network()
    recorder = TrajectoryRecorder(module)
    with torch.no_grad():
        module.get_parameter("0.weight")[0, 0] = torch.nan
    with pytest.raises(NonFiniteError, match="not finite"):
        recorder.record()


def test_as_a_callback(tmp_path: Path) -> None:
    """In a trainer it records after every so many steps."""
    module = network()
    recorder = TrajectoryRecorder(module, every=2)
    data = TensorDataset(torch.randn(20, 4), torch.randint(0, 2, (20,)))
    MappingTrainer(
        module, DataLoader(data, batch_size=4), max_epochs=2, accelerator="cpu", progress=False, callbacks=[recorder]
    ).fit()
    assert len(recorder.directions()[0]) == 5
    assert not torch.equal(flat(module), flat(network()))


def test_roles(tmp_path: Path) -> None:
    """With the patterns of the model, the basis is of what that model maps."""
    module = network()
    recorder = TrajectoryRecorder(module, trained="2", frozen=nn.LayerNorm)
    with torch.no_grad():
        module.get_parameter("0.weight").add_(1)
    recorder.record()
    recorder.save(tmp_path / "b", 1)
    mapper = Trajectory(path=tmp_path / "b")
    model = MappingModel(network(), 17, One(), mapper=mapper, trained="2", frozen=nn.LayerNorm)
    assert model.latent.shape == (1,)


def test_state_is_counted(basis: Path) -> None:
    """The trained floats of the basis are the mapping's state: 4 bytes a weight for each number in use."""
    model = MappingModel(network(), 3, One(), mapper=Trajectory(path=basis))
    assert model.mapping_bytes() == 4 * 3 * 72


def test_what_does_not_fit(basis: Path) -> None:
    """Another target, a strategy of many latents, and more numbers than directions are refused with the reason."""
    mapper = Trajectory(path=basis)
    with pytest.raises(TargetError, match=r"basis\.safetensors: is a basis for 72 weights, here are 10.*'slvt'"):
        MappingModel(nn.Linear(4, 2), 2, One(), mapper=mapper)
    with pytest.raises(BudgetError, match="holds 6 directions, a latent of 7"):
        MappingModel(network(), 7, One(), mapper=mapper)
    with pytest.raises(TargetError, match="is a basis for 72 weights, here are 40"):
        MappingModel(network(), 6, FirstLayer(), mapper=mapper)


def test_a_file_of_a_model_needs_its_basis(basis: Path, tmp_path: Path) -> None:
    """A saved model loads with its basis, moved or not to the bit, and with no other."""
    model = MappingModel(network(), 4, One(), mapper=Trajectory(path=basis), registry=REGISTRY)
    with torch.no_grad():
        model.latent.normal_()
    model.save(tmp_path / "model")
    loaded = MappingModel.load(tmp_path / "model", network(), registry=REGISTRY)
    assert loaded.mapper == model.mapper
    x = torch.randn(3, 4)
    assert torch.equal(loaded(x), model(x))
    recorded(5)[1].save(basis, 5)
    with pytest.raises(FileFormatError, match=r"holds another basis, of SHA-256 .*expected"):
        MappingModel.load(tmp_path / "model", network(), registry=REGISTRY)
    basis.unlink()
    with pytest.raises(FileFormatError, match="there is no such file; mapper 'trajectory' needs"):
        MappingModel.load(tmp_path / "model", network(), registry=REGISTRY)


def test_other_files(tmp_path: Path) -> None:
    """A file that is no basis, one of a later format, and none at all are said to be so."""
    path = tmp_path / "b"
    with pytest.raises(ConfigError, match=r"path: there is no file .*TrajectoryRecorder\.save"):
        Trajectory(path=path)
    context = MapperContext(in_features=1, out_features=2, seed=0)
    later = {"mapping_plugin_mappers": '{"basis": 99}'}
    for metadata in (None, {"mapping_plugin_mappers": "{}"}, {"mapping_plugin_mappers": "[]"}, later):
        safetensors.torch.save_file({"directions": torch.ones(1, 2)}, path, metadata=metadata)
        with pytest.raises(FileFormatError, match="is no basis that"):
            Trajectory(path=path).build(context)
    path.write_bytes(b"something else")
    with pytest.raises(FileFormatError, match="is no basis that"):
        Trajectory(path=path).build(context)


def test_as_a_table(basis: Path) -> None:
    """A table names the file; its hash may be given, and is computed where it is not."""
    registry = Registry.discover()
    made = registry.resolve(MapperConfig, {"type": "trajectory", "path": str(basis)})
    assert made == Trajectory(path=basis)
    copy = basis.with_name("copy")
    shutil.copy(basis, copy)
    assert Trajectory(path=copy).sha256 == Trajectory(path=basis).sha256
    with pytest.raises(ConfigError, match=r"path: missing"):
        registry.resolve(MapperConfig, "trajectory")
    with pytest.raises(ConfigError, match="sha256"):
        registry.resolve(MapperConfig, {"type": "trajectory", "path": str(basis), "sha256": "no"})
