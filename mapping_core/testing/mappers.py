"""Checks of mappers: a fixed map from a latent to weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mapping_core.components import MapperConfig
from mapping_core.contexts import MapperContext
from mapping_core.interfaces.mapper import LinearMapper, Mapper
from mapping_core.testing.contract import Check, contract, expect
from mapping_core.testing.observing import (
    all_moved,
    compiles_alike,
    global_seed,
    gradient_is_exact,
    nothing_drawn,
    trains_nothing,
)
from mapping_core.testing.worlds import MapperWorld


def build(component: MapperConfig, world: MapperWorld, *, stream: int = 0, **sizes: int) -> Mapper:
    """Build a mapper as a strategy does."""
    size = {"in_features": world.in_features, "out_features": world.out_features, **sizes}
    return component.build(MapperContext(**size, seed=world.seed, stream=stream))


def latent(world: MapperWorld, *lead: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """A latent [*lead, d]."""
    made = torch.randn(*lead, world.in_features, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return made.to(dtype)


@contract("return a Mapper from build(): a subclass whose __init__ calls super().__init__(in_features, out_features)")
def builds(component: MapperConfig, world: MapperWorld) -> None:
    """`build(context)` returns a `Mapper` of the context's sizes."""
    mapper = build(component, world)
    expect(isinstance(mapper, Mapper), f"build() returned {type(mapper).__name__}")
    sizes = (mapper.in_features, mapper.out_features)
    expect(sizes == (world.in_features, world.out_features), f"says that it maps {mapper.extra_repr()}")


@contract("pad inside, and cut the result: strategies divide targets into latents and layers of any size")
def takes_any_size(component: MapperConfig, world: MapperWorld) -> None:
    """A mapper is built for every d >= 1 and n >= 1, sizes that are no power of two among them."""
    for d, n in ((1, 1), (1, 7), (3, 2), (7, 129)):
        z = torch.ones(d)
        output = build(component, world, in_features=d, out_features=n)(z)
        expect(output.shape == (n,), f"built for {d} -> {n} it gives {list(output.shape)}")


@contract("compute along the last dimension, and flatten or expand the others")
def keeps_leading_dimensions(component: MapperConfig, world: MapperWorld) -> None:
    """A latent [..., d] gives [..., n], each one's result that of it alone."""
    mapper, z = build(component, world), latent(world, 2, 3)
    output = mapper(z)
    expect(output.shape == (2, 3, world.out_features), f"gives {list(output.shape)} for a latent {list(z.shape)}")
    same = torch.allclose(output[1, 2], mapper(z[1, 2]), rtol=1e-4, atol=1e-6)
    expect(same, "several latents at once give another result than each alone")


@contract("convert constants to the latent's dtype: self.table.to(z.dtype)")
def keeps_the_dtype(component: MapperConfig, world: MapperWorld) -> None:
    """The result has the latent's dtype, float32 or float64, and the same values."""
    mapper = build(component, world)
    outputs = {dtype: mapper(latent(world, dtype=dtype)) for dtype in (torch.float32, torch.float64)}
    for dtype, output in outputs.items():
        expect(output.dtype == dtype, f"gives {output.dtype} for a latent of {dtype}")
    same = torch.allclose(outputs[torch.float32].double(), outputs[torch.float64], rtol=1e-4, atol=1e-5)
    expect(same, "float32 and float64 give different values")


@contract("register tables with register_buffer(name, tensor, persistent=False), and make others on z.device")
def follows_the_device(component: MapperConfig, world: MapperWorld) -> None:
    """Moved to a device, a mapper computes there."""
    mapper = build(component, world).to("meta")
    all_moved(mapper)
    output = mapper(latent(world).to("meta"))
    expect(output.device.type == "meta", f"moved to another device it gives a result on {output.device}")


@contract("draw every number from RandomStream(context.seed, context.stream, purpose=YOURS)")
def same_seed_same_map(component: MapperConfig, world: MapperWorld) -> None:
    """The same seed and stream give the same map, whatever the global random state, which stays as it is."""
    z, outputs = latent(world), []
    for seed in (0, 1):
        with global_seed(seed), nothing_drawn("building it"):
            outputs.append(build(component, world)(z))
    expect(torch.equal(*outputs), f"two builds with seed {world.seed} give different results")


@contract("use both context.seed and context.stream: a strategy gives each of its mappers a stream")
def seeds_and_streams_differ(component: MapperConfig, world: MapperWorld) -> None:
    """Another seed gives another map, and so does another stream."""
    z = latent(world)
    first = build(component, world)(z)
    expect(not torch.equal(first, build(component, world.with_seed(6))(z)), "another seed gives the same map")
    expect(not torch.equal(first, build(component, world, stream=1)(z)), "another stream gives the same map")


@contract("leave out constant terms: an offset belongs into the base")
def maps_zero_to_zero(component: MapperConfig, world: MapperWorld) -> None:
    """A latent of 0 gives 0, so that a model starts as its target."""
    output = build(component, world)(torch.zeros(world.in_features))
    expect(not bool(output.any()), f"a latent of 0 gives numbers up to {float(output.abs().max()):.3g}")


@contract("divide by the norm of the rows, for a dense matrix of variance 1 by sqrt(in_features)")
def has_unit_gain(component: MapperConfig, world: MapperWorld) -> None:
    """Near 0, the rows of a mapper have norm 1 on average: one learning rate then fits every mapper and size."""
    d = world.in_features
    mapper = build(component, world)
    step = 1e-4
    rows = mapper(step * torch.eye(d, dtype=torch.float64)) / step
    gain = float(rows.square().sum(0).mean().sqrt())
    expect(0.9 < gain < 1.1, f"the rows' norm is {gain:.3g} on average")


@contract("make tensors buffers, not nn.Parameter; persistent=False where the seed gives them again")
def trains_and_saves_nothing(component: MapperConfig, world: MapperWorld) -> None:
    """A mapper has no trainable parameter and adds nothing to a state dict."""
    mapper = build(component, world)
    trains_nothing(mapper)
    expect(not mapper.state_dict(), f"its state dict holds {', '.join(mapper.state_dict())}")


@contract("compute rows(z, start, stop) as forward does, or leave the method as it is")
def rows_are_those_of_all(component: MapperConfig, world: MapperWorld) -> None:
    """`rows(z, start, stop)` gives the outputs start to stop."""
    mapper, z, n = build(component, world), latent(world, 2), world.out_features
    whole = mapper(z)
    for start, stop in ((0, n), (0, 1), (n // 3, n // 2 + 1), (n - 1, n)):
        part = mapper.rows(z, start, stop)
        expect(part.shape == (2, stop - start), f"rows {start} to {stop} have the shape {list(part.shape)}")
        same = torch.allclose(part, whole[:, start:stop], rtol=1e-4, atol=1e-6)
        expect(same, f"rows {start} to {stop} are not those of forward()")


@contract("use differentiable torch operations on z: no .data, .detach(), .item() or numpy on the way")
def gradient_reaches_the_latent(component: MapperConfig, world: MapperWorld) -> None:
    """In float64 the gradient with respect to the latent is that of finite differences."""
    mapper = build(component, world)
    gradient_is_exact(mapper, 0.3 * latent(world))


@contract("derive from Mapper instead of LinearMapper, or make its LinearMap's methods agree: one matrix G")
def linear_parts_agree(component: MapperConfig, world: MapperWorld) -> None:
    """A `LinearMapper` is linear, `write` adds rows to the base, `gather` and `unprepare_all` are the adjoints."""
    mapper = build(component, world)
    if not isinstance(mapper, LinearMapper):
        return
    one, two = latent(world, 2, dtype=torch.float64)
    linear = torch.allclose(mapper(2 * one - 3 * two), 2 * mapper(one) - 3 * mapper(two))
    expect(linear, "f(2 a - 3 b) is not 2 f(a) - 3 f(b)")
    linear_map = mapper.unpacked(torch.float64)
    prepared = linear_map.prepare(one).detach().contiguous()
    expect(prepared.shape == linear_map.prepared_shape, f"prepare() gives {list(prepared.shape)}, not prepared_shape")
    start, count = world.out_features // 3, world.out_features // 2
    base, out = torch.ones(count, dtype=torch.float64), torch.full((count,), torch.nan, dtype=torch.float64)
    linear_map.write(prepared, start, base, 0.5, out)
    rows = mapper.rows(one, start, start + count)
    expect(torch.allclose(out, base + 0.5 * rows), "write() does not set base + scale * rows")
    gathered, weights = torch.zeros_like(prepared), torch.arange(1.0, count + 1, dtype=torch.float64)
    halves = torch.split(weights, [count // 3, count - count // 3])
    linear_map.gather(halves, [0.5, 2.0], start, gathered)
    scaled = torch.cat([0.5 * halves[0], 2.0 * halves[1]])
    expect(torch.allclose((gathered * prepared).sum(), (scaled * rows).sum()), "gather() is not the adjoint of rows_of")
    (together,) = type(linear_map).prepare_all([linear_map], [one])
    expect(torch.allclose(together, prepared), "prepare_all() is not prepare() of each")
    (back,) = type(linear_map).unprepare_all([linear_map], [gathered])
    expect(
        torch.allclose((back * one).sum(), (gathered * prepared).sum()), "unprepare_all() is not the adjoint of prepare"
    )


@contract("avoid data-dependent Python (if on values, .item(), lists that grow) in forward()")
def compiles(component: MapperConfig, world: MapperWorld) -> None:
    """`torch.compile` takes it as one graph, with the same result."""
    compiles_alike(build(component, world), latent(world))


#: What is checked of a mapper, beside `common.CHECKS`.
CHECKS: tuple[Check[Any, Any], ...] = (
    builds,
    takes_any_size,
    keeps_leading_dimensions,
    keeps_the_dtype,
    follows_the_device,
    same_seed_same_map,
    seeds_and_streams_differ,
    maps_zero_to_zero,
    has_unit_gain,
    trains_and_saves_nothing,
    rows_are_those_of_all,
    gradient_reaches_the_latent,
    linear_parts_agree,
    compiles,
)
