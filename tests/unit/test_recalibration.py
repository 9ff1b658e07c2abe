"""Running statistics estimated anew under the present weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

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


def instance_norm() -> nn.Module:
    """Statistics that a module keeps without counting."""
    return nn.InstanceNorm2d(4, track_running_stats=True)


def without_counter() -> nn.Module:
    """A norm as it comes from an old file."""
    norm = nn.BatchNorm2d(4)
    norm.num_batches_tracked = None
    return norm


@pytest.mark.parametrize("make", [lambda: nn.BatchNorm2d(4), instance_norm, without_counter])
@pytest.mark.parametrize("momentum", [0.1, None, 0.9])
def test_plain_means_whatever_the_norm(make: Callable[[], nn.Module], momentum: float | None) -> None:
    """With any momentum, with or without a counter, the statistics are the means of what the batches have."""
    torch.manual_seed(0)
    norm = make()
    norm.momentum = momentum  # type: ignore[assignment]
    conv = nn.Conv2d(1, 4, 3)
    model = MappingModel(nn.Sequential(conv, norm), 8)
    for _ in range(2):
        assert model.recalibrate(batches()) == 3
    hidden = [conv(x).detach() for x in batches()]
    state = model.state_dict()
    torch.testing.assert_close(
        state["target.tracked.1.running_mean"], torch.stack([h.mean(dim=(0, 2, 3)) for h in hidden]).mean(0)
    )
    if not isinstance(norm, nn.InstanceNorm2d):
        torch.testing.assert_close(
            state["target.tracked.1.running_var"], torch.stack([h.var(dim=(0, 2, 3)) for h in hidden]).mean(0)
        )
    assert model.skeleton.get_submodule("1").momentum == momentum


def test_a_norm_that_runs_twice() -> None:
    """A norm in two places takes the mean over all its calls."""
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(6)
    model = MappingModel(nn.Sequential(norm, nn.Linear(6, 6), norm), 20)
    seen: list[torch.Tensor] = []
    model.skeleton.get_submodule("0").register_forward_pre_hook(lambda _, args: seen.append(args[0].mean(dim=0)))
    model.recalibrate([torch.randn(9, 6) + 1 for _ in range(3)])
    assert len(seen) == 6
    torch.testing.assert_close(model.state_dict()["target.tracked.0.running_mean"], torch.stack(seen).mean(0))


def test_failure_changes_nothing_at_all() -> None:
    """After a failed recalibration statistics, modes, momentum and what a file would hold are as before."""
    model = moved()
    keys, outputs = set(model.state_dict()), model.eval()(batches()[0])
    with pytest.raises(RuntimeError):
        model.recalibrate([batches()[0], torch.zeros(2, 7)])
    with pytest.raises(DataError):
        model.recalibrate(iter(()))
    assert set(model.state_dict()) == keys
    assert torch.equal(model(batches()[0]), outputs)
    norm = model.skeleton.get_submodule("1")
    assert norm.momentum == 0.1
    assert not norm._forward_pre_hooks


def test_dropout_is_off_and_inputs_come_in_any_form() -> None:
    """Only the norms are in training mode meanwhile; batches are pairs, dictionaries, or bare inputs."""
    torch.manual_seed(0)
    model = MappingModel(nn.Sequential(nn.Dropout(0.9), nn.BatchNorm1d(6), nn.Linear(6, 2)), 8)
    x = torch.randn(16, 6) + 3
    found = []
    for batch in (x, (x,), (x, torch.zeros(16)), {"input": x, "labels": torch.zeros(16)}):
        model.recalibrate([batch])
        found.append(model.state_dict()["target.tracked.1.running_mean"].clone())
    for mean in found:
        torch.testing.assert_close(mean, x.mean(dim=0))


class OwnNorm(nn.Module):
    """Keeps statistics, but in a way of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("running_mean", torch.zeros(3))
        self.register_buffer("running_var", torch.ones(3))
        self.gain = nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x - self.running_mean) * self.gain  # type: ignore[operator]


def test_a_norm_that_cannot_be_recalibrated() -> None:
    """A module whose statistics follow rules of its own is refused by class and path."""
    with pytest.raises(TargetError, match="recalibrate: OwnNorm '0' has no momentum"):
        MappingModel(nn.Sequential(OwnNorm()), 3).recalibrate([torch.ones(2, 3)])
