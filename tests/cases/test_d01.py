"""D1: weight tying. Source: pytorch issue 86708 (functional_call and tied weights)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from mapping_core import MappingModel, TargetError
from tests import targets


class Head(nn.Module):
    """An embedding and an output layer on one weight; with `bias`, the output's bias is the middle's too."""

    def __init__(self, *, bias: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 4)
        self.middle = nn.Linear(4, 5 if bias else 4)
        self.back = nn.Linear(5, 4) if bias else nn.Identity()
        self.output = nn.Linear(4, 5, bias=bias)
        self.output.weight = self.embedding.weight
        if bias:
            self.output.bias = self.middle.bias

    def forward(self, tokens: Tensor) -> Tensor:
        hidden: Tensor = self.output(self.back(self.middle(self.embedding(tokens)).tanh()))
        return hidden


class Across(nn.Module):
    """Two branches: a submodule in both, and a weight of one that is the other's, transposed in use."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.ModuleDict({"inner": nn.Linear(4, 4), "own": nn.Linear(4, 4)})
        self.decoder = nn.ModuleDict({"inner": self.encoder["inner"], "own": nn.Linear(4, 4)})
        self.decoder["own"].weight = self.encoder["own"].weight

    def forward(self, x: Tensor) -> Tensor:
        for branch in (self.encoder, self.decoder):
            x = branch["own"](branch["inner"](x).tanh())
        return x


class Recurrents(nn.Module):
    """Two LSTMs that share a hidden-to-hidden weight and a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = (nn.LSTM(4, 4, batch_first=True) for _ in range(2))
        self.b.weight_hh_l0 = self.a.weight_hh_l0
        self.b.bias_ih_l0 = self.a.bias_ih_l0

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.b(self.a(x[:, None].expand(-1, 3, -1))[0])[0][:, -1]
        return hidden


def one_norm_twice() -> nn.Module:
    """A BatchNorm that stands in two places, statistics and all."""
    norm = nn.BatchNorm1d(4)
    return nn.Sequential(nn.Linear(4, 4), norm, nn.Linear(4, 4), norm)


def two_norms_one_gain() -> nn.Module:
    """Two BatchNorms with one gain, each with its own statistics."""
    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4), nn.BatchNorm1d(4))
    module[3].weight = module[1].weight
    return module


def rows() -> Tensor:
    """Inputs [6, 4]."""
    return torch.randn(6, 4, generator=torch.Generator().manual_seed(1))


def tokens() -> Tensor:
    """Inputs [6]."""
    return torch.tensor([0, 1, 4, 2, 2, 0])


CASES = {
    "embedding_head": (Head, tokens, 1),
    "embedding_head_and_bias": (lambda: Head(bias=True), tokens, 2),
    "across_modules": (Across, rows, 3),
    "recurrent": (Recurrents, rows, 2),
    "one_norm_twice": (one_norm_twice, rows, 2),
    "two_norms_one_gain": (two_norms_one_gain, rows, 1),
}


@pytest.fixture(params=list(CASES.values()), ids=list(CASES))
def case(request: pytest.FixtureRequest) -> tuple[Callable[[], nn.Module], Callable[[], Tensor], int]:
    """Give each tied target, its inputs, and how many names are aliases."""
    made: tuple[Callable[[], nn.Module], Callable[[], Tensor], int] = request.param
    return made


@pytest.mark.parametrize("strategy", ["slvt", "layerwise"])
@pytest.mark.parametrize("lazy", [False, True])
def test_one_tensor_for_all_names(
    case: tuple[Callable[[], nn.Module], Callable[[], Tensor], int], strategy: str, lazy: bool
) -> None:
    """A shared parameter is generated once, counted once, and used under all its names; gradients add up."""
    make, inputs, aliases = case
    target = make()
    model = targets.moved(MappingModel(target, 20, strategy, lazy=lazy))
    names = dict(target.named_parameters(remove_duplicate=False))
    assert len(names) - len(model.generate_weights()) == aliases
    assert sum(spec.numel for spec in model.layout.parameters) == sum(p.numel() for p in target.parameters())
    targets.assert_equals_direct(model, inputs())


def test_export_is_tied(case: tuple[Callable[[], nn.Module], Callable[[], Tensor], int]) -> None:
    """What was one tensor in the target is one in the export, moved, and trains as one there."""
    make, inputs, _ = case
    target = make()
    exported = targets.moved(MappingModel(target, 20)).export()
    own, made = (dict(module.named_parameters(remove_duplicate=False)) for module in (target, exported))
    first = {id(p): name for name, p in reversed(own.items())}
    for name, parameter in own.items():
        assert made[name] is made[first[id(parameter)]]
        assert not torch.equal(made[name], parameter)
    exported(inputs()).sum().backward()
    assert len(list(exported.parameters())) == len(list(target.parameters()))


def test_nothing_stays_after_a_call(case: tuple[Callable[[], nn.Module], Callable[[], Tensor], int]) -> None:
    """After a call the skeleton holds no weight under any name: a shared module is not restored to a generated one."""
    make, inputs, _ = case
    model = targets.moved(MappingModel(make(), 20))
    for _ in range(2):
        model(inputs())
        tensors = [*model.skeleton.named_parameters(remove_duplicate=False), *model.skeleton.named_buffers()]
        assert [name for name, tensor in tensors if not tensor.is_meta] == []


@pytest.mark.parametrize("roles", [{"trained": "0.output"}, {"frozen": "*.embedding"}])
def test_a_role_holds_for_all_names(roles: dict[str, str]) -> None:
    """A pattern that matches one name of a shared parameter gives all of them that role, and the tie holds."""
    model = targets.moved(MappingModel(nn.Sequential(Head()), 24 if "trained" in roles else 8, **roles))  # type: ignore[arg-type]
    assert "0.embedding.weight" not in model.generate_weights()
    exported = model.export()
    assert exported.get_parameter("0.output.weight") is exported.get_parameter("0.embedding.weight")
    torch.testing.assert_close(model(tokens()), exported(tokens()))


def test_a_tie_by_memory_alone() -> None:
    """Two parameters on one memory, which ordinary training would move together, are refused by name."""
    target = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    target[1].weight = nn.Parameter(target.get_parameter("0.weight").data)
    with pytest.raises(TargetError, match=r"'0\.weight' and '1\.weight' share memory without being one parameter"):
        MappingModel(target, 16)
