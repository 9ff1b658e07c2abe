"""Checks of generators ("strategies"): which latent feeds which parameters."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
from attrs import evolve

from mapping_core.components import GeneratorConfig
from mapping_core.interfaces.generator import Generator
from mapping_core.model import MappingModel
from mapping_core.testing.common import registry_of
from mapping_core.testing.contract import Check, contract, expect
from mapping_core.testing.models import copies_of, difference, model_of, moved
from mapping_core.testing.observing import compiles_alike, global_seed, gradient_is_exact, nothing_drawn, trains_nothing
from mapping_core.testing.worlds import ModelWorld


def model(component: GeneratorConfig, world: ModelWorld, **options: Any) -> MappingModel:
    """The world's target, mapped by this strategy."""
    return model_of(world, **{"strategy": component, **options})


@contract("return a Generator from build(), without nn.Parameter: the model owns the latents")
def builds(component: GeneratorConfig, world: ModelWorld) -> None:
    """`build(context)` returns a `Generator` that trains nothing of its own."""
    generator = model(component, world).generator
    expect(isinstance(generator, Generator), f"build() returned {type(generator).__name__}")
    trains_nothing(generator)


@contract("divide context.latent_dim among latent_sizes without a rest, and feed each of context.layout.mapped once")
def meets_the_budget(component: GeneratorConfig, world: ModelWorld) -> None:
    """The latents have exactly `latent_dim` numbers in all, and every mapped parameter is fed by one of them."""
    for latent_dim in (world.latent_dim, world.latent_dim + 1, world.latent_dim + 7):
        made = model(component, evolve(world, latent_dim=latent_dim))
        total = sum(made.generator.latent_sizes.values())
        expect(total == latent_dim, f"uses {total} numbers of latent_dim={latent_dim}")


@contract("return base + a change that is 0 for a latent of 0; leave base itself as it is")
def starts_as_the_target(component: GeneratorConfig, world: ModelWorld) -> None:
    """With latents of 0 the weights are the base, bit for bit, in its shapes and dtypes."""
    made = model(component, world)
    base = made.target.base.as_dict()
    before = {name: weight.clone() for name, weight in base.items()}
    weights = made.generate_weights()
    for name, weight in base.items():
        expect(torch.equal(weight, before[name]), f"it wrote into the base of {name}")
        expect(weights[name].dtype == weight.dtype, f"{name} is {weights[name].dtype}, its base {weight.dtype}")
        expect(torch.equal(weights[name], weight), f"{name} is not its base when all latents are 0")


@contract("keep nothing of a call on self; compute from latents and base alone")
def is_stateless(component: GeneratorConfig, world: ModelWorld) -> None:
    """The same latents and base give the same weights, whatever was generated between."""
    made = moved(model(component, world))
    first = made.generate_weights()
    made.generate_weights({name: 0.5 * z for name, z in made.latents.items()})
    again = made.generate_weights()
    expect(all(torch.equal(first[name], again[name]) for name in first), "a second call gives other weights")


@contract("index latents from the last dimension on, and give each weight the latents' leading dimensions in front")
def keeps_leading_dimensions(component: GeneratorConfig, world: ModelWorld) -> None:
    """Latents [..., size] give weights [..., *shape], each as under its latent alone."""
    made = moved(model(component, world))
    stacked = copies_of(made, 3)
    together = made.generate_weights(stacked)
    alone = made.generate_weights({name: z[1] for name, z in stacked.items()})
    for name, weight in alone.items():
        shape = together[name].shape
        expect(shape == (3, *weight.shape), f"{name} has the shape {list(shape)} for three latents")
    where = difference({name: weight[1] for name, weight in together.items()}, alone)
    expect(not where, f"{where} differs from what its latent gives alone")


@contract("draw from RandomStream(context.seed, ...), or let context.expansion() build mappers, a stream each")
def same_seed_same_weights(component: GeneratorConfig, world: ModelWorld) -> None:
    """The seed decides: the same gives the same weights whatever the global random state, another gives others."""
    made = []
    for seed in (0, 1):
        with global_seed(seed), nothing_drawn("building it"):
            made.append(moved(model(component, world)).generate_weights())
    expect(all(torch.equal(made[0][name], made[1][name]) for name in made[0]), "the same seed gives other weights")
    other = moved(model(component, world, seed=world.seed + 1)).generate_weights()
    expect(any(not torch.equal(made[0][name], other[name]) for name in other), "another seed gives the same weights")


@contract("let weights depend on every number by differentiable operations; a number that feeds nothing is wasted")
def gradient_reaches_every_latent(component: GeneratorConfig, world: ModelWorld) -> None:
    """Each latent that feeds parameters gets a gradient that is finite and not 0."""
    made = moved(model(component, world))
    made(world.batch(4)[0]).square().sum().backward()
    grad = made.latent.grad
    expect(grad is not None and bool(grad.isfinite().all()), "the latent gets no finite gradient")
    assert grad is not None
    sizes, feeds = made.generator.latent_sizes, made.generator.assignment()
    for name, piece in zip(sizes, torch.split(grad, list(sizes.values())), strict=True):
        expect(not feeds[name] or bool(piece.any()), f"latent {name!r} ({sizes[name]} numbers) gets a gradient of 0")


@contract(
    "use differentiable torch operations on latents: no .data, .detach(), .item(); rounding is an expected failure"
)
def gradient_is_that_of_finite_differences(component: GeneratorConfig, world: ModelWorld) -> None:
    """In float64 the gradient with respect to the latent is that of finite differences."""
    made = moved(model(component, world)).double()
    inputs = world.batch(2)[0].double()
    gradient_is_exact(lambda z: torch.func.functional_call(made, {"latent": z}, (inputs,)), made.latent_vector())


@contract("override generate_some only to save work; its results are those of forward()")
def some_are_those_of_all(component: GeneratorConfig, world: ModelWorld) -> None:
    """`generate_some` gives the named parameters, or some of their rows, as `forward` does; a lazy model runs on it."""
    made = moved(model(component, world))
    whole, base = made.generate_weights(), made.target.base.as_dict()
    for name, weight in whole.items():
        some = made.generator.generate_some(made.latents, base, frozenset({name}))
        expect(some.keys() == {name}, f"asked for {name} it gives {sorted(some)}")
        expect(not difference(some, whole), f"{name} differs when it is asked for alone")
        if weight.ndim > 0 and len(weight) > 1:
            rows = (1, len(weight))
            some = made.generator.generate_some(made.latents, base, frozenset({name}), rows)
            expect(not difference(some, {name: weight[1:]}), f"rows {rows} of {name} are not those of the whole")
    inputs = world.batch(4)[0]
    late = moved(model(component, world, lazy=True))
    expect(torch.allclose(late(inputs), made(inputs), rtol=1e-4, atol=1e-5), "a lazy model computes something else")


@contract("keep what must be remembered in persistent buffers of fixed shapes, and change them in place")
def survives_its_file(component: GeneratorConfig, world: ModelWorld) -> None:
    """A model's file and its state dict bring back the same weights, bit for bit."""
    made = moved(model(component, world))
    weights = made.generate_weights()
    with tempfile.TemporaryDirectory() as folder:
        made.save(Path(folder) / "model")
        registry = registry_of(component, *made.components().values())
        loaded = MappingModel.load(Path(folder) / "model", world.target(), registry=registry)
    fresh = model(component, world)
    fresh.load_state_dict(made.state_dict())
    for how, again in (("its file", loaded), ("its state dict", fresh)):
        same = all(torch.equal(weight, weights[name]) for name, weight in again.generate_weights().items())
        expect(same, f"{how} gives other weights")


@contract("make unpack(pack(latents)) give latents with the same weights, or leave both methods as they are")
def packs_without_loss(component: GeneratorConfig, world: ModelWorld) -> None:
    """What a generator packs for a file gives the same weights, bit for bit, when it is unpacked."""
    made = moved(model(component, world))
    packed = made.generator.pack(made.latents)
    if packed is None:
        return
    unpacked = made.generator.unpack(packed)
    before, after = made.generate_weights(), made.generate_weights(unpacked)
    expect(all(torch.equal(before[name], after[name]) for name in before), "other weights after unpack(pack(latents))")


@contract("avoid data-dependent Python (if on values, .item()) in forward()")
def compiles(component: GeneratorConfig, world: ModelWorld) -> None:
    """`torch.compile` takes it as one graph, with the same weights."""
    made = moved(model(component, world))
    compiles_alike(made.generator, dict(made.latents), made.target.base.as_dict())


#: What is checked of a generator, beside `common.CHECKS`.
CHECKS: tuple[Check[Any, Any], ...] = (
    builds,
    meets_the_budget,
    starts_as_the_target,
    is_stateless,
    keeps_leading_dimensions,
    same_seed_same_weights,
    gradient_reaches_every_latent,
    gradient_is_that_of_finite_differences,
    some_are_those_of_all,
    survives_its_file,
    packs_without_loss,
    compiles,
)
