"""Every kind of target under every strategy: start, budget, training, export, and nothing touched."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from mapping_core import MappingModel, MappingTrainer
from tests import targets
from tests.snapshots import snapshot

LATENT_DIM = 7


@pytest.fixture(params=["slvt", "layerwise"])
def strategy(request: pytest.FixtureRequest) -> str:
    """Give each strategy."""
    name: str = request.param
    return name


@pytest.fixture(params=targets.CASES, ids=lambda case: case.name)
def case(request: pytest.FixtureRequest) -> targets.Case:
    """Give each target."""
    made: targets.Case = request.param
    return made


def trained(case: targets.Case, target: nn.Module, strategy: str) -> MappingModel:
    """Return a model of the target after three epochs on its own inputs."""
    model = MappingModel(target, LATENT_DIM, strategy)
    x = case.inputs()
    with torch.no_grad():
        classes = torch.arange(len(x)) % target.eval()(x).shape[-1]
        target.train()
    MappingTrainer(model, [(x, classes)], max_epochs=3, seed=0, accelerator="cpu", progress=False).fit()
    return model


def test_starts_as_the_target(case: targets.Case, strategy: str) -> None:
    """Before training the outputs are those of the target, in either mode, value for value."""
    target = case.make()
    model = MappingModel(target, LATENT_DIM, strategy)
    x = case.inputs()
    assert torch.equal(model.eval()(x), target.eval()(x))
    if case.name != "estimated_conv_norm":  # whose statistics the model keeps, and the target does not
        assert torch.equal(model.train()(x), target.train()(x))


def test_budget_is_exact(case: targets.Case, strategy: str) -> None:
    """The trainable numbers are latent_dim, from the smallest possible to all weights."""
    target = case.make()
    weights = sum(p.numel() for p in target.parameters() if p.requires_grad)
    for latent_dim in {LATENT_DIM, weights // 2 + 4, weights}:
        model = MappingModel(target, latent_dim, strategy)
        assert sum(p.numel() for p in model.parameters()) == latent_dim
        assert sum(z.numel() for z in model.latents.values()) == latent_dim


def test_the_users_module_is_not_touched(case: targets.Case, strategy: str) -> None:
    """Building, training and exporting leave the module as it was: bits, flags, gradients, modes, ties, hooks."""
    target = case.make()
    before = snapshot(target)
    model = MappingModel(target, LATENT_DIM, strategy)
    x = case.inputs()
    model(x).float().sum().backward()
    model.export()
    MappingTrainer(
        model, [(x, torch.zeros(len(x), dtype=torch.int64))], max_epochs=2, accelerator="cpu", progress=False
    ).fit()
    model.export().requires_grad_(False).double()
    assert snapshot(target) == before


def test_a_latent_moves_every_mapped_weight(case: targets.Case, strategy: str) -> None:
    """Under another latent every mapped parameter differs, is finite, and has its dtype; the others are equal."""
    target = case.make()
    model = trained(case, target, strategy)
    with torch.no_grad():
        model.latent.normal_(generator=torch.Generator().manual_seed(0))
    exported = dict(model.export().named_parameters())
    for name, parameter in target.named_parameters():
        assert exported[name].dtype == parameter.dtype
        assert exported[name].shape == parameter.shape
        assert exported[name].isfinite().all()
        assert exported[name].requires_grad == parameter.requires_grad
        assert torch.equal(exported[name], parameter) != parameter.requires_grad


def test_export_is_the_model(case: targets.Case, strategy: str) -> None:
    """The exported module is of the target's class and computes what the model computes, and is its own."""
    target = case.make()
    model = trained(case, target, strategy).eval()
    exported = model.export()
    x = case.inputs()
    assert type(exported) is type(target)
    assert list(exported.state_dict()) == list(target.state_dict())
    expected: Tensor = model(x)
    assert torch.equal(exported(x), expected)
    with torch.no_grad():
        for parameter in exported.parameters():
            parameter.zero_()
    assert torch.equal(model(x), expected)


def test_gradients_are_those_of_the_chain_rule(strategy: str) -> None:
    """The latent's gradient is the target's own gradients pulled back through the mapping."""
    for case in (each for each in targets.CASES if each.name in {"mlp", "residual", "recurrent", "tied", "scalars"}):
        model = trained(case, case.make(), strategy)
        x = case.inputs()
        model.zero_grad()
        model(x).square().sum().backward()
        weights = model.generate_weights()
        direct = model.export().train()
        direct(x).square().sum().backward()
        pulled = torch.autograd.grad(
            list(weights.values()), model.latent, [direct.get_parameter(name).grad for name in weights]
        )
        torch.testing.assert_close(model.latent.grad, pulled[0], rtol=1e-4, atol=1e-5)


def test_each_name_has_its_own_weights(strategy: str) -> None:
    """Parameters `a.b` and `a_b` each start from their own values."""
    weights = MappingModel(targets.LookAlikeNames(), LATENT_DIM, strategy).generate_weights()
    assert {name: (tensor.numel(), tensor[0].item()) for name, tensor in weights.items()} == {
        "a.b": (6, 2.0),
        "a_b": (3, 5.0),
    }


def test_a_tie_moves_as_one(strategy: str) -> None:
    """Embedding and output layer share one generated tensor, counted once, during training and after export."""
    case = next(case for case in targets.CASES if case.name == "tied")
    target = case.make()
    model = trained(case, target, strategy)
    assert "output.weight" not in model.generate_weights()
    exported = model.export()
    assert exported.get_parameter("output.weight") is exported.get_parameter("embedding.weight")
    assert not torch.equal(exported.get_parameter("output.weight"), target.get_parameter("output.weight"))
