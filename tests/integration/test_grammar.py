"""Properties that hold for any target: random ones from a grammar, under both strategies."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from torch import Tensor, nn

from mapping_core import MappingModel, Registry
from mapping_core.target.buffers import statistics_of
from tests.grammar import Program, programs
from tests.snapshots import snapshot

# torch says of an LSTM with projections that it takes the slower way
pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections")

REGISTRY = Registry.discover()
STRATEGIES = pytest.mark.parametrize("strategy", ["slvt", "layerwise"])


def examples(count: int) -> settings:
    """The same examples in every run, so that the suite is one thing."""
    return settings(
        max_examples=count,
        derandomize=True,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )


def mapped(program: Program, strategy: str, *, double: bool = False, **options: Any) -> MappingModel:
    """A model of a fresh target of the program."""
    target = program.make().double() if double else program.make()
    return MappingModel(target, strategy=strategy, registry=REGISTRY, **program.mapping(), **options)


def moved(program: Program, model: MappingModel) -> MappingModel:
    """The model after everything that trains has moved."""
    vector = torch.randn(model.latent_dim, generator=torch.Generator().manual_seed(program.seed + 2))
    model.load_latent_vector(0.5 * vector + model.latent_vector())
    return model


def same(a: nn.Module, b: nn.Module) -> bool:
    """Whether two modules have the same state, bit for bit (a NaN equals itself)."""
    left, right = a.state_dict(), b.state_dict()
    return list(left) == list(right) and all(
        torch.equal(left[name].reshape(-1).view(torch.uint8), right[name].reshape(-1).view(torch.uint8))
        for name in left
    )


@STRATEGIES
@given(program=programs())
@examples(30)
def test_starts_as_the_target(program: Program, strategy: str) -> None:
    """Before training outputs equal the target's, bit for bit, in evaluation and, without an estimate, in training."""
    target = program.make()
    model = mapped(program, strategy)
    x = program.inputs()
    assert torch.equal(model.eval()(x), target.eval()(x))
    if not program.warm or not any(statistics_of(module) for module in target.modules()):
        assert torch.equal(model.train()(x), target.train()(x))


@STRATEGIES
@given(program=programs())
@examples(18)
def test_trainable_numbers_are_the_budget(program: Program, strategy: str) -> None:
    """The numbers that train are latent_dim, no more and no fewer, and all of them reach an optimiser once."""
    model = mapped(program, strategy)
    assert sum(p.numel() for p in model.parameters() if p.requires_grad) == model.latent_dim
    assert len({id(p) for p in model.parameters()}) == len(list(model.parameters()))
    assert model.latent_vector().shape == (model.latent_dim,)


@STRATEGIES
@given(program=programs())
@examples(18)
def test_equals_the_direct_module(program: Program, strategy: str) -> None:
    """In float64 the model computes what a plain module with the generated weights computes, in either mode."""
    model = moved(program, mapped(program, strategy, double=True))
    x = program.inputs(torch.float64)
    for mode in (False, True):
        model.train(mode)
        direct = model.export()
        assert [each.training for each in direct.modules()] == [each.training for each in model.skeleton.modules()]
        torch.testing.assert_close(model(x), direct(x), rtol=1e-12, atol=1e-12)
        direct = model.export()  # a normalised weight's own estimates have moved in the first one
        with torch.no_grad():
            torch.testing.assert_close(model(x), direct(x), rtol=1e-12, atol=1e-12)


@STRATEGIES
@given(program=programs())
@examples(10)
def test_gradient_by_finite_differences(program: Program, strategy: str) -> None:
    """The gradient of `forward_with` is the one that finite differences give in float64."""
    model = mapped(program, strategy, double=True).eval()
    x = program.inputs(torch.float64)
    vector = moved(program, model).latent_vector().double().requires_grad_()

    def scalar(vector: Tensor) -> Tensor:
        output: Tensor = model.forward_with(vector, x)
        return (output * torch.linspace(0.5, 1.5, output.numel(), dtype=output.dtype).view_as(output)).sum()

    assert torch.autograd.gradcheck(scalar, (vector,), rtol=1e-4, atol=1e-5, fast_mode=False)


@STRATEGIES
@given(program=programs())
@examples(18)
def test_the_users_module_is_untouched(program: Program, strategy: str) -> None:
    """Whatever is done with a model, the user's module keeps bits, storage, flags, gradients, modes and hooks."""
    target = program.make()
    before = snapshot(target)
    model = MappingModel(target, strategy=strategy, registry=REGISTRY, **program.mapping())
    x = program.inputs()
    for mode in (True, False):
        model.train(mode)
        model(x).sum().backward()
        with torch.no_grad():
            model(x)
        moved(program, model).export().requires_grad_(False).double()
    model.double()
    model.eval()
    assert snapshot(target) == before


@STRATEGIES
@given(program=programs())
@examples(18)
def test_round_trips(program: Program, strategy: str) -> None:
    """Through `save` and `load`, `export` and `export_state_dict` everything arrives bit for bit."""
    model = mapped(program, strategy)
    x = program.inputs()
    model.train()(x)  # running statistics move
    moved(program, model).eval()
    expected = model(x)
    exported = model.export()
    assert torch.equal(exported(x), expected)
    filled = program.make().eval()
    filled.load_state_dict(model.export_state_dict(), strict=True)
    assert torch.equal(filled(x), expected)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        model.save(path)
        loaded = MappingModel.load(path, program.make(), registry=REGISTRY).eval()
    assert torch.equal(loaded(x), expected)
    assert same(loaded, model)
    assert same(loaded.export(), exported)


@STRATEGIES
@given(program=programs())
@examples(18)
def test_lazy_gradients_are_the_eager_ones(program: Program, strategy: str) -> None:
    """Generating weights unit by unit gives the same outputs and gradients as generating all at once."""
    found = []
    for lazy in (False, True):
        model = moved(program, mapped(program, strategy, double=True, lazy=lazy)).double()
        output = model(program.inputs(torch.float64))
        output.square().sum().backward()
        found.append((output, *(p.grad for p in model.parameters())))
    for eager, lazy_ in zip(*found, strict=True):
        torch.testing.assert_close(eager, lazy_, rtol=1e-9, atol=1e-9)
