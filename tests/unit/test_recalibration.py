"""Running statistics estimated anew under the present weights."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from mapping_core import DataError, MappingModel, TargetError
from tests import targets


def batches() -> list[torch.Tensor]:
    """Return three batches of bare inputs."""
    return list(torch.split(torch.randn(24, 1, 6, 6, generator=torch.Generator().manual_seed(4)) * 3 + 2, 8))


def moved() -> MappingModel:
    """Return a model whose weights left the ones its statistics were estimated under."""
    model = MappingModel(targets.estimated_conv_norm(), 16)
    with torch.no_grad():
        model.latent.normal_(generator=torch.Generator().manual_seed(0))
    return model


def test_statistics_are_means_over_the_batches(tmp_path: Path) -> None:
    """They are what a norm without momentum collects, in the file from then on, and every mode is as before."""
    model = moved()
    modes = [module.training for module in model.skeleton.modules()]
    assert model.recalibrate([(x, torch.zeros(8)) for x in batches()]) == 3
    assert [module.training for module in model.skeleton.modules()] == modes
    twin = model.export()
    norm = twin.get_submodule("1")
    assert isinstance(norm, torch.nn.BatchNorm2d)
    got = norm.running_mean.clone(), norm.running_var.clone()  # type: ignore[union-attr]
    norm.reset_running_stats()
    norm.momentum, norm.training = None, True
    for x in batches():
        twin(x)
    torch.testing.assert_close(got, (norm.running_mean, norm.running_var))
    model.save(tmp_path / "m")
    loaded = MappingModel.load(tmp_path / "m", targets.estimated_conv_norm())
    assert torch.equal(loaded.eval()(batches()[0]), model.eval()(batches()[0]))


def test_limit_and_nothing() -> None:
    """A limit is kept to; without a batch, or with one that fails, the statistics stay; without norms it is refused."""
    model = moved().eval()
    assert MappingModel(targets.conv_norm(), 16).recalibrate(batches(), batches=2) == 2
    before = model(batches()[0])
    with pytest.raises(DataError, match="the loader gave no batch"):
        model.recalibrate([])
    with pytest.raises(RuntimeError):
        model.recalibrate([batches()[0], torch.zeros(2, 7)])
    assert torch.equal(model(batches()[0]), before)
    with pytest.raises(TargetError, match="keeps no running statistics"):
        MappingModel(targets.mlp(), 16).recalibrate(batches())


def test_batch_statistics() -> None:
    """Under "batch" a norm uses the batch at hand in either mode, and nothing is tracked."""
    target = targets.conv_norm()
    model = MappingModel(target, 16, buffers="batch")
    x = batches()[0]
    assert torch.equal(model.eval()(x), target.train()(x))
    assert set(model.state_dict()) == {"latent"}
