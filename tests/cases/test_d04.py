"""D4: reparametrized weights. Source: pytorch issue 102981 (deepcopy of weight_norm)."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from mapping_core import MappingModel, TargetError
from tests import targets

X = torch.randn(5, 6, generator=torch.Generator().manual_seed(1))

pytestmark = pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated")

WRAPPED: dict[str, Callable[[nn.Module], nn.Module]] = {
    "weight_norm": nn.utils.weight_norm,
    "weight_norm_over_all": lambda module: nn.utils.weight_norm(module, dim=None),  # type: ignore[arg-type]
    "spectral_norm": nn.utils.spectral_norm,
    "parametrized_weight_norm": parametrizations.weight_norm,
    "parametrized_spectral_norm": parametrizations.spectral_norm,
    "orthogonal": parametrizations.orthogonal,
    "pruned": lambda module: prune.random_unstructured(module, "weight", amount=0.3),  # type: ignore[no-untyped-call]
}


def target(kind: str) -> nn.Module:
    """Return a network whose middle layer is reparametrized."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 6), nn.Tanh(), WRAPPED[kind](nn.Linear(6, 4)), nn.Tanh(), nn.Linear(4, 3))


@pytest.fixture(params=WRAPPED)
def kind(request: pytest.FixtureRequest) -> str:
    """Give each way."""
    name: str = request.param
    return name


@pytest.mark.parametrize("lazy", [False, True])
def test_equals_the_direct_module(kind: str, lazy: bool) -> None:
    """It starts as the target; afterwards outputs and gradients are those of the export, in either mode."""
    module = target(kind)
    model = MappingModel(module, 20, lazy=lazy)
    assert torch.equal(model.eval()(X), module.eval()(X))
    targets.moved(model)
    targets.assert_equals_direct(model, X)
    targets.assert_equals_direct(model.train(), X)


@pytest.mark.parametrize("state", ["new", "after a forward", "after a backward", "after inference"])
def test_copies(kind: str, state: str) -> None:
    """At any time a model can be copied, and pickled where its target can; the copy is equal and its own."""
    model = targets.moved(MappingModel(target(kind), 20))
    output = model(X) if state.startswith("after a") else None
    if output is not None and state == "after a backward":
        output.sum().backward()
    if state == "after inference":
        with torch.no_grad():
            model.eval()(X)
    model.eval()
    twins = [copy.deepcopy(model)]
    if any(hasattr(module, "parametrizations") for module in model.skeleton.modules()):
        with pytest.raises(RuntimeError, match="parametrized modules is only supported through state_dict"):
            pickle.dumps(model)  # torch's own rule for such modules
    else:
        twins.append(pickle.loads(pickle.dumps(model)))  # noqa: S301 - our own bytes
    for twin in twins:
        expected = model(X)
        assert torch.equal(twin(X), expected)
        targets.moved(twin, seed=1)
        assert not torch.equal(twin(X), expected)
        assert torch.equal(model(X), expected)


def test_a_target_that_has_run(kind: str) -> None:
    """A target that was run, and holds the graph of that pass, is mapped all the same, and keeps its graph."""
    module = target(kind)
    output = module(X)
    model = MappingModel(module, 20)
    torch.testing.assert_close(model.eval()(X), module.eval()(X))
    output.sum().backward()
    assert all(parameter.grad is not None for parameter in module.parameters())


def test_moving_average(kind: str) -> None:
    """An average of models over training steps works, and is the model of the averaged latent."""
    model = targets.moved(MappingModel(target(kind), 20))
    model(X).sum().backward()
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.5))  # type: ignore[no-untyped-call]
    for seed in (0, 1):
        average.update_parameters(targets.moved(model, seed=seed))
    mean = (targets.moved(model, seed=0).latent_vector() + targets.moved(model, seed=1).latent_vector()) / 2
    model.load_latent_vector(mean)
    torch.testing.assert_close(average.eval()(X), model.eval()(X))


def test_export_and_file(kind: str, tmp_path: Path) -> None:
    """Export and file keep the reparametrization, and give the same outputs."""
    model = targets.moved(MappingModel(target(kind), 20)).eval()
    model(X)
    exported = model.export()
    assert torch.equal(exported(X), model(X))
    assert list(exported.state_dict()) == list(target(kind).state_dict())
    plain = target(kind)
    plain.load_state_dict(model.export_state_dict())
    torch.testing.assert_close(plain.eval()(X), model(X))
    model.save(tmp_path / "m")
    assert torch.equal(MappingModel.load(tmp_path / "m", target(kind)).eval()(X), model(X))


@pytest.mark.parametrize("kind", ["spectral_norm", "parametrized_spectral_norm"])
@pytest.mark.parametrize("policy", ["frozen", "tracked", "batch"])
def test_a_spectral_norm_follows_the_weights(kind: str, policy: str, tmp_path: Path) -> None:
    """After training the largest singular value is still 1, under every policy, in the export and after reload."""
    model = MappingModel(target(kind), 20, buffers=policy)
    targets.trainer_of(model, max_epochs=20, learning_rate=0.5).fit()
    model.save(tmp_path / "m")
    for each in (model, MappingModel.load(tmp_path / "m", target(kind))):
        exported = each.eval().export()
        exported(X)  # the old kind computes its weight in a forward
        weight = exported.get_submodule("2").weight
        assert isinstance(weight, torch.Tensor)
        torch.testing.assert_close(float(torch.linalg.matrix_norm(weight.detach(), 2)), 1.0, atol=0.02, rtol=0)


def test_recurrent_weight_norm() -> None:
    """A weight of an LSTM under weight_norm, which torch keeps in a list of its own, is the generated one."""

    def make() -> nn.Module:
        torch.manual_seed(0)
        module = targets.Recurrent()
        nn.utils.weight_norm(module.lstm, "weight_hh_l0")
        return module

    x = torch.randn(3, 5, 4)
    for lazy in (False, True):
        model = targets.moved(MappingModel(make(), 20, lazy=lazy))
        targets.assert_equals_direct(model, x)
        assert torch.equal(copy.deepcopy(model)(x), model(x))


class Foreign(nn.Module):
    """A module that no copy can be made of."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)
        self.generator = (each for each in range(3))


def test_what_cannot_be_copied_is_named() -> None:
    """A module that cannot be copied is refused by its class, with the reason."""
    with pytest.raises(TargetError, match=r"Foreign cannot be copied \(TypeError: cannot pickle 'generator' object\)"):
        MappingModel(Foreign(), 6)
