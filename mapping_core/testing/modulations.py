"""Checks of modulations: how a latent modulates what its mapper gives."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mapping_core.components import ModulationConfig
from mapping_core.contexts import ModulationContext
from mapping_core.interfaces.modulation import Modulation
from mapping_core.model import MappingModel
from mapping_core.target.layout import Layout
from mapping_core.testing.contract import Check, contract, expect
from mapping_core.testing.models import copies_of, difference, model_of, moved
from mapping_core.testing.observing import (
    all_moved,
    compiles_alike,
    global_seed,
    gradient_is_exact,
    nothing_drawn,
    trains_nothing,
)
from mapping_core.testing.worlds import ModelWorld

Weights = dict[str, Tensor]


def build(component: ModulationConfig, world: ModelWorld) -> Modulation:
    """Build a modulation of all parameters of the world's target."""
    return component.build(
        ModulationContext(in_features=world.latent_dim, parameters=Layout.of(world.target()).mapped, seed=world.seed)
    )


def model(component: ModulationConfig, world: ModelWorld, **options: Any) -> MappingModel:
    """The world's target, mapped with this modulation."""
    return model_of(world, modulation=component, **options)


def changes(world: ModelWorld) -> tuple[Weights, Tensor, Weights]:
    """What a modulation is given: changes by name, a latent [d], base weights by name."""
    base = {name: parameter.detach() for name, parameter in world.target().named_parameters()}
    noise = torch.Generator().manual_seed(4)
    delta = {name: 0.1 * torch.randn(weight.shape, generator=noise) for name, weight in base.items()}
    return delta, 0.3 * torch.randn(world.latent_dim, generator=noise), base


@contract("return a Modulation from build(), without nn.Parameter, its tables in buffers with persistent=False")
def builds(component: ModulationConfig, world: ModelWorld) -> None:
    """`build(context)` returns a `Modulation` that trains nothing and adds nothing to a state dict."""
    made = build(component, world)
    expect(isinstance(made, Modulation), f"build() returned {type(made).__name__}")
    trains_nothing(made)
    expect(not made.state_dict(), f"its state dict holds {', '.join(made.state_dict())}")


@contract("give a change for each name in delta, in its shape and dtype; make new tensors instead of writing into them")
def keeps_names_and_shapes(component: ModulationConfig, world: ModelWorld) -> None:
    """The result has the names, shapes and dtypes of `delta`, which stays as it is, and so does `base`."""
    made = build(component, world)
    delta, z, base = changes(world)
    before = {name: (delta[name].clone(), base[name].clone()) for name in delta}
    result = made(dict(delta), z, base)
    expect(result.keys() == delta.keys(), f"gives {sorted(result)} for {sorted(delta)}")
    for name, change in result.items():
        given = (change.shape, change.dtype)
        expect(given == (delta[name].shape, delta[name].dtype), f"{name} became {list(given[0])}, {given[1]}")
        kept = torch.equal(delta[name], before[name][0]) and torch.equal(base[name], before[name][1])
        expect(kept, f"it wrote into what it was given for {name}")


@contract("let every factor be 1 and every shift 0 at z = 0: 1 + strength * following(z)")
def is_nothing_at_zero(component: ModulationConfig, world: ModelWorld) -> None:
    """At ``z = 0`` the result is `delta`, bit for bit, so that a pretrained network starts as it is."""
    delta, z, base = changes(world)
    result = build(component, world)(dict(delta), torch.zeros_like(z), base)
    moved_names = [name for name in delta if not torch.equal(result[name], delta[name])]
    expect(not moved_names, f"{', '.join(moved_names)} changed at z = 0")


@contract("use z: a modulation that does not follow it belongs into the base, or is no modulation")
def follows_the_latent(component: ModulationConfig, world: ModelWorld) -> None:
    """Elsewhere it changes at least one parameter."""
    delta, z, base = changes(world)
    result = build(component, world)(dict(delta), z, base)
    expect(any(not torch.equal(result[name], delta[name]) for name in delta), "changes nothing at a z that is not 0")


@contract("shape what follows z as z.shape[:-1] + (1,) * base[name].ndim before it meets a weight")
def keeps_leading_dimensions(component: ModulationConfig, world: ModelWorld) -> None:
    """Latents [..., d] with changes [..., *shape] give [..., *shape], each as under its latent alone."""
    made = moved(model(component, world))
    stacked = copies_of(made, 3)
    together = made.generate_weights(stacked)
    alone = made.generate_weights({name: z[1] for name, z in stacked.items()})
    where = difference({name: weight[1] for name, weight in together.items()}, alone)
    expect(not where, f"{where} differs from what its latent gives alone")


@contract("take what is asked for: loop over delta, and override of_rows where the row of a weight matters")
def some_are_those_of_all(component: ModulationConfig, world: ModelWorld) -> None:
    """Given some parameters, or some rows of them, it gives what it gives them among all; lazy models run on it."""
    made = build(component, world)
    delta, z, base = changes(world)
    whole = made(dict(delta), z, base)
    for name, weight in delta.items():
        alone = made({name: weight}, z, {name: base[name]})
        expect(not difference(alone, whole), f"{name} alone differs from {name} among all")
        if weight.ndim > 0 and len(weight) > 1:
            rows = (1, len(weight))
            part = made.of_rows({name: weight[1:]}, z, {name: base[name][1:]}, rows)
            expect(not difference(part, {name: whole[name][1:]}), f"rows {rows} of {name} are not those of the whole")


@contract("draw every number from RandomStream(context.seed, context.stream, purpose=YOURS)")
def same_seed_same_change(component: ModulationConfig, world: ModelWorld) -> None:
    """The same seed gives the same change, whatever the global random state, which stays as it is."""
    delta, z, base = changes(world)
    results = []
    for seed in (0, 1):
        with global_seed(seed), nothing_drawn("building it"):
            results.append(build(component, world)(dict(delta), z, base))
    expect(all(torch.equal(results[0][name], results[1][name]) for name in delta), "two builds give different changes")


@contract("use differentiable torch operations on z and delta: no .data, .detach(), .item()")
def gradient_reaches_the_latent(component: ModulationConfig, world: ModelWorld) -> None:
    """In float64 the gradient with respect to the latent is that of finite differences."""
    made = moved(model(component, world)).double()
    inputs = world.batch(2)[0].double()
    gradient_is_exact(lambda z: torch.func.functional_call(made, {"latent": z}, (inputs,)), made.latent_vector())


@contract("register tables with register_buffer(name, tensor, persistent=False)")
def follows_the_device(component: ModulationConfig, world: ModelWorld) -> None:
    """Moved to a device, a modulation computes there."""
    made = build(component, world).to("meta")
    all_moved(made)
    delta, z, base = changes(world)
    result = made({n: t.to("meta") for n, t in delta.items()}, z.to("meta"), {n: t.to("meta") for n, t in base.items()})
    elsewhere = [name for name, change in result.items() if change.device.type != "meta"]
    expect(not elsewhere, f"moved to another device it gives {', '.join(elsewhere)} on the CPU")


@contract("avoid data-dependent Python (if on values, .item()) in forward()")
def compiles(component: ModulationConfig, world: ModelWorld) -> None:
    """`torch.compile` takes it as one graph, with the same result."""
    compiles_alike(build(component, world), *changes(world))


#: What is checked of a modulation, beside `common.CHECKS`.
CHECKS: tuple[Check[Any, Any], ...] = (
    builds,
    keeps_names_and_shapes,
    is_nothing_at_zero,
    follows_the_latent,
    keeps_leading_dimensions,
    some_are_those_of_all,
    same_seed_same_change,
    gradient_reaches_the_latent,
    follows_the_device,
    compiles,
)
