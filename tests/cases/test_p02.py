"""P2: frozen parameters. Source: a target with `requires_grad=False`, which a mapping moved or re-flagged."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from mapping_core import MappingModel, TargetError
from tests import targets


def freeze_layer(target: nn.Module) -> None:
    """Freeze a whole layer."""
    target.get_submodule("0").requires_grad_(False)


def freeze_bias(target: nn.Module) -> None:
    """Freeze half of a layer."""
    target.get_parameter("2.bias").requires_grad_(False)


def freeze_most(target: nn.Module) -> None:
    """Freeze all but one tensor."""
    target.requires_grad_(False)
    target.get_parameter("0.weight").requires_grad_(True)


@pytest.mark.parametrize("freeze", [freeze_layer, freeze_bias, freeze_most])
@pytest.mark.parametrize("strategy", ["slvt", "layerwise"])
def test_values_and_flags_are_kept(freeze: Callable[[nn.Module], None], strategy: str, tmp_path: Path) -> None:
    """Frozen parameters keep their values through training, export and file, and every flag is the user's."""
    target = targets.mlp()
    freeze(target)
    flags = {name: parameter.requires_grad for name, parameter in target.named_parameters()}
    model = MappingModel(target, 12, strategy)
    targets.trainer_of(model).fit()
    model.save(tmp_path / "m")
    again = targets.mlp()
    freeze(again)
    for exported in (model.export(), MappingModel.load(tmp_path / "m", again).export()):
        assert {name: parameter.requires_grad for name, parameter in exported.named_parameters()} == flags
        for name, parameter in target.named_parameters():
            assert torch.equal(exported.get_parameter(name), parameter) != flags[name]
    assert {name: parameter.requires_grad for name, parameter in target.named_parameters()} == flags
    assert [spec.name for spec in model.layout.frozen] == [name for name, flag in flags.items() if not flag]


def test_frozen_by_pattern_leaves_the_flags() -> None:
    """What `frozen=` freezes keeps its values as well, and its flag in the user's module and in the export."""
    target = targets.mlp()
    model = MappingModel(target, 12, frozen="0")
    targets.trainer_of(model).fit()
    assert torch.equal(model.export().get_parameter("0.weight"), target.get_parameter("0.weight"))
    assert all(parameter.requires_grad for parameter in [*target.parameters(), *model.export().parameters()])


def test_a_tie_with_a_frozen_name() -> None:
    """A shared parameter that is frozen is frozen under both names."""
    target = targets.Tied()
    target.embedding.weight.requires_grad_(False)
    model = targets.moved(MappingModel(target, 12))
    assert torch.equal(model.export().get_parameter("output.weight"), target.embedding.weight)


class Odd(nn.Module):
    """Complex and integer parameters beside ordinary ones."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)
        self.phase = nn.Parameter(torch.ones(3, dtype=torch.complex64))
        self.shift = nn.Parameter(torch.arange(3), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = (self.layer(x) * self.phase).real + self.shift
        return logits


def test_what_no_latent_can_feed(tmp_path: Path) -> None:
    """Complex and integer parameters keep their values, also in float64 and in a file."""
    target = Odd()
    model = targets.moved(MappingModel(target, 7))
    assert set(model.generate_weights()) == {"layer.weight", "layer.bias"}
    x = torch.randn(4, 6)
    model(x).sum().backward()
    assert torch.equal(model.export().get_parameter("phase"), target.phase)
    assert torch.equal(model.export().get_parameter("shift"), target.shift)
    model.save(tmp_path / "m")
    assert torch.equal(MappingModel.load(tmp_path / "m", target)(x), model(x))


def test_all_frozen() -> None:
    """A target with nothing left to map is refused."""
    with pytest.raises(TargetError, match="has no parameter to map"):
        MappingModel(targets.mlp().requires_grad_(False), 12)
