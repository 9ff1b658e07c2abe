"""D7: norm statistics through a file. Source: peft issue 1732 (batch norm after reload)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from mapping_core import MappingModel
from tests import targets


def instance_norm() -> nn.Module:
    """An InstanceNorm that keeps statistics."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.InstanceNorm2d(4, affine=True, track_running_stats=True), nn.Flatten())


def shared_norm() -> nn.Module:
    """A norm that stands in two places."""
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(3)
    return nn.Sequential(nn.Conv2d(1, 3, 3), norm, nn.Conv2d(3, 3, 3), norm, nn.Flatten())


MAKES = [targets.conv_norm, targets.estimated_conv_norm, instance_norm, shared_norm]


def images(seed: int) -> Tensor:
    """Inputs [8, 1, 6, 6] that are neither centred nor of unit variance."""
    return torch.randn(8, 1, 6, 6, generator=torch.Generator().manual_seed(seed)) * 3 + 2


def trained(target: nn.Module, policy: str) -> MappingModel:
    """Return a model whose latent and statistics have moved."""
    model = targets.moved(MappingModel(target, 12, buffers=policy))
    for seed in range(4):
        model(images(seed))
    return model.eval()


@pytest.mark.parametrize("make", MAKES)
@pytest.mark.parametrize("policy", ["frozen", "tracked", "batch"])
@pytest.mark.parametrize("recalibrated", [False, True])
def test_a_file_on_a_fresh_target(
    make: Callable[[], nn.Module], policy: str, recalibrated: bool, tmp_path: Path
) -> None:
    """Saved and loaded onto a fresh target, the model gives the same bits, and so does the export of either."""
    torch.manual_seed(0)
    model = trained(make(), policy)
    if recalibrated and policy != "batch":
        model.recalibrate([images(7), images(8)])
    model.save(tmp_path / "m")
    torch.manual_seed(0)
    loaded = MappingModel.load(tmp_path / "m", make()).eval()
    x = images(9)
    assert torch.equal(loaded(x), model(x))
    assert torch.equal(loaded.export()(x), model(x))
    assert set(loaded.state_dict()) == set(model.state_dict())


@pytest.mark.parametrize("make", MAKES)
@pytest.mark.parametrize("recalibrated", [False, True])
def test_a_state_dict_on_a_fresh_model(make: Callable[[], nn.Module], recalibrated: bool) -> None:
    """The same holds for `state_dict()` and `load_state_dict()`, alone and inside a larger module."""
    torch.manual_seed(0)
    model = trained(make(), "frozen")
    if recalibrated:
        model.recalibrate([images(7), images(8)])
    torch.manual_seed(0)
    fresh = nn.ModuleDict({"inner": MappingModel(make(), 12)})
    fresh.load_state_dict(nn.ModuleDict({"inner": model}).state_dict())
    x = images(9)
    assert torch.equal(fresh.eval()["inner"](x), model(x))


def test_the_export_goes_into_the_target() -> None:
    """`export_state_dict` goes into the user's own module, statistics too, which then gives the same bits."""
    model = trained(targets.conv_norm(), "tracked")
    plain = targets.conv_norm()
    plain.load_state_dict(model.export_state_dict())
    x = images(9)
    assert torch.equal(plain.eval()(x), model(x))
