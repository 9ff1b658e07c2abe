"""Checks of dynamics models: what watches the latent's trajectory and proposes jumps."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mapping_core.components import DynamicsConfig
from mapping_core.contexts import DynamicsContext
from mapping_core.interfaces.dynamics import DynamicsModel, Proposal
from mapping_core.testing.contract import Check, contract, expect
from mapping_core.testing.observing import equal, global_seed, nothing_drawn
from mapping_core.testing.worlds import TrajectoryWorld
from mapping_core.training.state import check_plain

HORIZONS = (1, 5, 20)


def build(component: DynamicsConfig, world: TrajectoryWorld, *, size: int | None = None) -> DynamicsModel:
    """Build a model for the world's trajectory."""
    return component.build(DynamicsContext(size=world.size if size is None else size, seed=world.seed))


def trajectory(world: TrajectoryWorld, *, curved: bool = True) -> Tensor:
    """The vectors [steps, size] of a run that settles down, or of one that goes straight on."""
    generator = torch.Generator().manual_seed(world.seed)
    direction = torch.randn(world.size, generator=generator)
    times = torch.arange(1.0, world.steps + 1)
    way = 1 - torch.exp(-times / world.steps) if curved else times / world.steps
    noise = 1e-3 * torch.randn(world.steps, world.size, generator=generator) if curved else 0
    return way[:, None] * direction + noise


def watch(model: DynamicsModel, vectors: Tensor, *, start: int = 0) -> None:
    """Show a model a trajectory, as a run does: one piece of memory, written to by each step."""
    memory = torch.empty_like(vectors[0])
    for index, vector in enumerate(vectors):
        memory.copy_(vector)
        model.observe(memory, 2.0 / (start + index + 1), start + index)
    memory.fill_(torch.nan)


def watching(component: DynamicsConfig, world: TrajectoryWorld, *, curved: bool = True) -> DynamicsModel:
    """A model that has seen the world's trajectory."""
    model = build(component, world)
    watch(model, trajectory(world, curved=curved))
    return model


def deltas(proposals: list[Proposal]) -> list[Tensor]:
    """The displacements of proposals."""
    return [each.delta for each in proposals]


@contract("return a DynamicsModel from build(), for every context.size >= 1")
def builds(component: DynamicsConfig, world: TrajectoryWorld) -> None:
    """`build(context)` returns a `DynamicsModel`, for a vector of one number too."""
    for size in (world.size, 1):
        model = build(component, world, size=size)
        expect(isinstance(model, DynamicsModel), f"build() returned {type(model).__name__}")
        watch(model, torch.linspace(0, 1, 50)[:, None].expand(50, size).contiguous())
        model.propose(HORIZONS)


@contract("return [] from propose() until enough was observed")
def is_silent_at_first(component: DynamicsConfig, world: TrajectoryWorld) -> None:
    """Before anything was observed, and after one vector, it proposes nothing."""
    model = build(component, world)
    expect(model.propose(HORIZONS) == [], "proposes a jump before it has seen a step")
    watch(model, trajectory(world)[:1])
    expect(model.propose(HORIZONS) == [], "proposes a jump after one vector")


@contract("return Proposal objects with delta [size] of the observed dtype, at most one a horizon, in their order")
def proposes_in_order(component: DynamicsConfig, world: TrajectoryWorld) -> None:
    """After a long smooth trajectory it proposes for some of the horizons asked for, in their order."""
    for curved in (True, False):
        for dtype in (torch.float32, torch.float64):
            model = build(component, world)
            watch(model, trajectory(world, curved=curved).to(dtype))
            found = model.propose(HORIZONS)
            expect(isinstance(found, list), f"propose() gives {type(found).__name__}")
            what = "that settles" if curved else "that goes straight on"
            expect(bool(found), f"proposes nothing after {world.steps} steps of a trajectory {what}")
            horizons = [each.horizon for each in found]
            expect(horizons == [h for h in HORIZONS if h in horizons], f"asked for {HORIZONS} it proposes {horizons}")
            for delta in deltas(found):
                given = (tuple(delta.shape), delta.dtype)
                expect(given == ((world.size,), dtype), f"delta is {given[0]}, {given[1]} for a vector of {dtype}")
                expect(bool(delta.isfinite().all()), "delta is not finite after a smooth trajectory")


@contract("detach what is observed, compute under torch.no_grad(), and clone what is proposed")
def keeps_no_graph_and_no_memory(component: DynamicsConfig, world: TrajectoryWorld) -> None:
    """Proposals have no gradient, share no memory, and do not change with the caller's vector; it is not written to."""
    model = build(component, world)
    vectors = trajectory(world)
    for step, vector in enumerate(vectors):
        memory = vector.clone()
        model.observe(memory, 1.0, step)
        expect(torch.equal(memory, vector), "observe() writes into the caller's vector")
    with torch.enable_grad():
        found = model.propose(HORIZONS)
    before = [delta.clone() for delta in deltas(found)]
    expect(not any(delta.requires_grad for delta in deltas(found)), "a proposal carries a graph")
    memory.fill_(torch.nan)
    expect(
        equal(before, deltas(model.propose(HORIZONS))), "proposals change with the caller's vector: copy what is kept"
    )
    for delta in deltas(found):
        delta.fill_(torch.nan)
    expect(
        equal(before, deltas(model.propose(HORIZONS))), "writing into a proposal changes the model or another proposal"
    )


@contract("draw from a generator of the model's own, seeded with context.seed, anew for each propose()")
def proposes_the_same_twice(component: DynamicsConfig, world: TrajectoryWorld) -> None:
    """The same seed and trajectory give the same proposals, asked for twice too; the global random state stays."""
    found = []
    for seed in (0, 1):
        with global_seed(seed), nothing_drawn("watching and proposing"):
            model = watching(component, world)
            found += [deltas(model.propose(HORIZONS)), deltas(model.propose(HORIZONS))]
    expect(equal(found[0], found[1]), "proposing twice gives different jumps")
    expect(equal(found[0], found[2]), "two models with the same seed and trajectory propose different jumps")


@contract("in feedback(accepted, ...), add accepted.delta to all vectors that are kept")
def takes_no_jump_for_a_step(component: DynamicsConfig, world: TrajectoryWorld) -> None:
    """After an accepted jump of 20 steps, one step of the run does not look like 20."""
    model, vectors = watching(component, world, curved=False), trajectory(world, curved=False)
    found = model.propose((20,))
    if not found:
        return
    model.feedback(found[0], 1.0)
    step = vectors[1] - vectors[0]
    watch(model, (vectors[-1] + found[0].delta + step)[None], start=world.steps)
    after = model.propose((1,))
    length = max((float(delta.norm()) for delta in deltas(after)), default=0.0)
    expect(length < 5 * float(step.norm()), f"proposes {length / float(step.norm()):.0f} steps for one after the jump")


@contract("take feedback(None, measured) and feedback(None, None): a rejected jump, and one that nobody judged")
def hears_of_rejections(component: DynamicsConfig, world: TrajectoryWorld) -> None:
    """It goes on after rejections, and what it proposes then is made of numbers too."""
    model = watching(component, world)
    for measured in (3.0, None):
        if model.propose(HORIZONS):
            model.feedback(None, measured)
    watch(model, trajectory(world)[-2:], start=world.steps)
    expect(
        all(bool(delta.isfinite().all()) for delta in deltas(model.propose(HORIZONS))), "proposes numbers not finite"
    )


@contract("put all that propose() looks at into state_dict(), as plain values and tensors, and take it back")
def survives_a_restart(component: DynamicsConfig, world: TrajectoryWorld) -> None:
    """Loaded from its state, which later steps do not change, it proposes what it would have proposed."""
    vectors = trajectory(world)
    half = world.steps // 2
    model, fresh = build(component, world), build(component, world)
    watch(model, vectors[:half])
    state = model.state_dict()
    check_plain(state, "its state")
    watch(model, vectors[half:], start=half)
    fresh.load_state_dict(state)
    watch(fresh, vectors[half:], start=half)
    same = equal(deltas(model.propose(HORIZONS)), deltas(fresh.propose(HORIZONS)))
    expect(same, "loaded from its state it proposes otherwise (or the state changed with the steps after it: copy it)")


#: What is checked of a dynamics model, beside `common.CHECKS`.
CHECKS: tuple[Check[Any, Any], ...] = (
    builds,
    is_silent_at_first,
    proposes_in_order,
    keeps_no_graph_and_no_memory,
    proposes_the_same_twice,
    takes_no_jump_for_a_step,
    hears_of_rejections,
    survives_a_restart,
)
