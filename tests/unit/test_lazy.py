"""Lazy generation: the same function and gradient as eager generation, unit by unit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from attrs import define
from torch import Tensor, nn
from torch.nn import functional

import mapping_core.builtin
from mapping_core import Generator, GeneratorConfig, MappingModel, Registry, TargetError, hookimpl
from mapping_core.contexts import GeneratorContext
from tests import targets


def pair(
    target: nn.Module, latent_dim: int = 7, *, lazy: Any = True, **options: Any
) -> tuple[MappingModel, MappingModel]:
    """Return an eager and a lazy model of a target with one latent that is not 0."""
    eager = MappingModel(target, latent_dim, **options)
    late = MappingModel(target, latent_dim, lazy=lazy, **options)
    with torch.no_grad():
        eager.latent.normal_(generator=torch.Generator().manual_seed(0))
        late.latent.copy_(eager.latent)
    return eager, late


def same(eager: MappingModel, late: MappingModel, x: Tensor) -> None:
    """Hold the lazy model to the eager one: outputs (bit for bit, unless a dense product was cut) and gradients."""
    one, two = eager(x), late(x)
    if eager.mapper.name == "srht":
        assert torch.equal(one, two)
    torch.testing.assert_close(two, one)
    one.float().square().sum().backward()
    two.float().square().sum().backward()
    torch.testing.assert_close(late.latent.grad, eager.latent.grad)


@pytest.mark.parametrize("strategy", ["slvt", "layerwise"])
@pytest.mark.parametrize("mapper", ["srht", "orthogonal"])
@pytest.mark.parametrize("case", targets.CASES, ids=lambda case: case.name)
def test_same_as_eager(case: targets.Case, mapper: str, strategy: str) -> None:
    """Outputs and gradients are those of eager generation, for every target, strategy and mapper."""
    eager, late = pair(case.make(), strategy=strategy, mapper=mapper)
    same(eager, late, case.inputs())


def test_no_weight_outlives_a_call() -> None:
    """After a call, and after one that fails, the skeleton holds no generated weight and no hook."""
    _, late = pair(targets.mlp())
    late(torch.randn(2, 6))
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        late(torch.randn(2, 5))
    assert all(parameter.is_meta for parameter in late.skeleton.parameters())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in late.skeleton.modules())
    late(torch.randn(2, 6))


def test_backward_sees_the_latent_of_its_forward() -> None:
    """A latent that an optimiser writes between forward and backward does not change the gradient."""
    eager, late = pair(targets.mlp())
    x = torch.randn(4, 6)
    one, two = eager(x).square().sum(), late(x).square().sum()
    with torch.no_grad():
        late.latent.add_(1)
    one.backward()
    two.backward()
    torch.testing.assert_close(late.latent.grad, eager.latent.grad)


class Nosy(nn.Module):
    """Reads the weight of its child."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner = nn.Module()
        self.inner.child = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        child = self.inner.child
        assert isinstance(child, nn.Linear)
        return functional.linear(x, child.weight)


class Asking(nn.Module):
    """Asks its weights for dtype, device and shape before it runs the layer that owns them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.child = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        first = next(self.parameters())
        assert self.child.weight.shape == (3, 6)
        assert [first.numel(), len(first), first.size(1), first.dim()] == [18, 3, 6, 2]
        made: Tensor = self.child(x.to(first.dtype))
        return made


def test_a_weight_may_be_asked_what_it_is() -> None:
    """Type and shape of a weight may be read anywhere in the target."""
    same(*pair(nn.Sequential(Asking())), torch.randn(4, 6))


def test_a_weight_used_outside_its_module() -> None:
    """A module that reads another's weight is refused with the way out, and works when it is named."""
    root = nn.Sequential(Nosy(), nn.Tanh())
    x = torch.randn(4, 6)
    with pytest.raises(TargetError, match=r"'0.inner.child.weight' was used by linear\(\) outside .*lazy=\('path'"):
        pair(root)[1](x)
    for lazy in ("0", Nosy, ("0",)):
        same(*pair(root, lazy=lazy), x)


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True),
        lambda: nn.utils.parametrizations.weight_norm(nn.Linear(8, 3)),
        lambda: nn.Sequential(nn.utils.parametrizations.orthogonal(nn.Linear(8, 8))),
    ],
    ids=["transformer", "weight_norm", "orthogonal"],
)
def test_units_that_read_their_children(make: Any) -> None:
    """Attention and parametrised modules, which read weights that their children own, are units by themselves."""
    torch.manual_seed(0)
    same(*pair(make(), 12), torch.randn(2, 3, 8))


def test_checkpointing_around_a_lazy_model() -> None:
    """Activation checkpointing of the whole model gives the same gradient."""
    from torch.utils.checkpoint import checkpoint

    eager, late = pair(targets.mlp())
    x = torch.randn(4, 6)
    eager(x).square().sum().backward()
    checkpoint(late, x, use_reentrant=False).square().sum().backward()
    torch.testing.assert_close(late.latent.grad, eager.latent.grad)


def modules_twice() -> nn.Module:
    """A layer that runs twice in a pass, and stands in two places."""
    torch.manual_seed(0)
    layer = nn.Linear(6, 6)
    return nn.Sequential(layer, nn.Tanh(), layer, nn.Sequential(layer, nn.Linear(6, 3)))


class Crossing(nn.Module):
    """An embedding whose weight a head reads as a function, without the module that owns it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(7, 4)
        self.middle = nn.Linear(4, 4)

    def forward(self, tokens: Tensor) -> Tensor:
        return functional.linear(self.middle(self.embedding(tokens)), self.embedding.weight)


class Recursive(nn.Module):
    """Runs itself, deeper and deeper, and uses its weight afterwards."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.weight = nn.Parameter(torch.randn(6, 6) / 3)

    def forward(self, x: Tensor, depth: int = 2) -> Tensor:
        if depth:
            x = self(x, depth - 1)
        return (x @ self.weight).tanh()


class Lists(nn.Module):
    """Weights in containers that never run."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.weights = nn.ParameterList([torch.randn(6, 6) / 3, torch.randn(6, 3) / 3])
        self.biases = nn.ParameterDict({"a": torch.randn(6)})

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = (x @ self.weights[0] + self.biases["a"]).tanh() @ self.weights[1]
        return output


class Padded(nn.Module):
    """Self-attention with padding, queries and keys of different sizes, and a decoder."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.attention = nn.MultiheadAttention(8, 2, kdim=4, vdim=4, batch_first=True, add_bias_kv=True)
        self.decoder = nn.TransformerDecoderLayer(8, 2, 8, dropout=0.0, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        mask = torch.zeros(len(x), x.shape[1], dtype=torch.bool)
        mask[:, -1] = True
        attended = self.attention(x, x[..., :4], x[..., 4:], key_padding_mask=mask, need_weights=False)[0]
        output: Tensor = self.decoder(attended, x)
        return output


def rows(*shape: int) -> Tensor:
    """Return seeded inputs."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


STRUCTURES: dict[str, tuple[Any, Tensor]] = {
    "a layer twice": (modules_twice, rows(4, 6)),
    "recursion": (Recursive, rows(4, 6)),
    "containers": (Lists, rows(4, 6)),
    "lstm": (lambda: nn.LSTM(6, 3, 2, bidirectional=True, batch_first=True), rows(4, 5, 6)),
    "gru cell": (lambda: nn.Sequential(nn.GRUCell(6, 6), nn.Linear(6, 2)), rows(4, 6)),
    "attention": (Padded, rows(3, 5, 8)),
    "transformer": (
        lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 8, dropout=0.0, batch_first=True), 2),
        rows(3, 5, 8),
    ),
    "old spectral norm": (lambda: nn.Sequential(nn.utils.spectral_norm(nn.Linear(6, 3))), rows(4, 6)),
    "embedding bag": (lambda: nn.Sequential(nn.EmbeddingBag(7, 4), nn.Linear(4, 3)), torch.tensor([[1, 2], [6, 0]])),
    "transposed convolution": (lambda: nn.ConvTranspose2d(2, 3, 3, groups=1), rows(2, 2, 5, 5)),
    "bilinear": (lambda: Bilinear(), rows(4, 6)),
}


class Bilinear(nn.Module):
    """A layer of two inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Bilinear(6, 6, 2)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.layer(x, x.roll(1, 0))
        return output


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize("strategy", ["slvt", "layerwise"])
@pytest.mark.parametrize("name", STRUCTURES)
def test_structures(name: str, strategy: str) -> None:
    """Whatever the structure, outputs and gradients are the eager ones, in training and in evaluation mode."""
    make, x = STRUCTURES[name]
    torch.manual_seed(0)
    eager, late = pair(make(), 20, strategy=strategy)
    for mode in (True, False):
        one, two = (targets.first_tensor(model.train(mode)(x)) for model in (eager, late))
        torch.testing.assert_close(two, one)
        for model, output in ((eager, one), (late, two)):
            model.zero_grad()
            output.square().sum().backward()  # type: ignore[no-untyped-call]
        torch.testing.assert_close(late.latent.grad, eager.latent.grad, rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        torch.testing.assert_close(targets.first_tensor(late(x)), targets.first_tensor(eager(x)))


@pytest.mark.parametrize("strategy", ["slvt", "layerwise"])
def test_two_forwards_before_one_backward(strategy: str) -> None:
    """Each pass keeps the latent it ran under, also when an optimiser steps between them."""
    grads = []
    for lazy in (False, True):
        model = targets.moved(MappingModel(targets.mlp(), 7, strategy, lazy=lazy))
        x, total = rows(4, 6), torch.zeros(())
        for _ in range(3):
            total = total + model(x).square().sum()
            model.latent.data.mul_(1.5)
        total.backward()  # type: ignore[no-untyped-call]
        grads.append(model.latent.grad)
    torch.testing.assert_close(grads[0], grads[1])


def test_an_optimiser_step_between_forward_and_backward() -> None:
    """The gradient is that of the forward pass, not of the latent that came later."""
    eager, late = pair(targets.Residual(), 20)
    x = rows(4, 6)
    loss = late(x).square().sum()
    optimizer = torch.optim.SGD(late.parameters(), lr=1.0)
    late.latent.grad = torch.ones_like(late.latent)
    optimizer.step()
    optimizer.zero_grad()
    loss.backward()
    eager(x).square().sum().backward()
    torch.testing.assert_close(late.latent.grad, eager.latent.grad)


@pytest.mark.parametrize("make", [targets.Residual, Recursive, modules_twice])
@pytest.mark.parametrize("strategy", ["slvt", "layerwise"])
def test_double_backward(make: Any, strategy: str) -> None:
    """The gradient of a gradient's norm, which goes through the weights a second time, is the eager one."""
    grads = []
    for lazy in (False, True):
        model = targets.moved(MappingModel(make(), 9, strategy, lazy=lazy))
        x = rows(4, 6).requires_grad_()
        (slope,) = torch.autograd.grad(model(x).square().sum(), x, create_graph=True)
        slope.square().sum().backward()  # type: ignore[no-untyped-call]
        grads.append(model.latent.grad)
    torch.testing.assert_close(grads[0], grads[1], rtol=1e-4, atol=1e-5)


def test_a_graph_kept_for_a_second_backward() -> None:
    """`retain_graph` works, and gives the gradient twice."""
    _, late = pair(targets.mlp())
    loss = late(rows(4, 6)).square().sum()
    loss.backward(retain_graph=True)
    assert late.latent.grad is not None
    once = late.latent.grad.clone()
    loss.backward()
    torch.testing.assert_close(late.latent.grad, 2 * once)


def test_the_graph_keeps_no_generated_weight() -> None:
    """Between forward and backward no weight is alive: notes stand in their place."""
    import gc
    import weakref

    alive: list[weakref.ref[Tensor]] = []
    _, late = pair(nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.LSTM(6, 3)), 30)
    make = late.generator.generate_some

    def noting(*args: Any) -> dict[str, Tensor]:
        made = make(*args)
        alive.extend(weakref.ref(weight) for weight in made.values())
        return made

    late.generator.generate_some = noting  # type: ignore[method-assign,assignment]
    output = late(rows(4, 6))[0]
    gc.collect()
    assert len(alive) == 6
    # cuDNN-like kernels may pack weights of their own; what is generated must be gone all the same.
    assert [reference for reference in alive if reference() is not None] == []
    output.sum().backward()
    gc.collect()
    assert [reference for reference in alive if reference() is not None] == []


@pytest.mark.parametrize("lazy", ["", ("embeding",), (nn.Conv2d,)])
def test_units_that_are_not_there(lazy: Any) -> None:
    """A pattern that matches no module is a mistake, and is said with the nearest name."""
    expected = (
        "lazy='embeding' matches no module; did you mean 'embedding'" if lazy == ("embeding",) else "matches no module"
    )
    with pytest.raises(TargetError, match=expected):
        MappingModel(Crossing(), 12, lazy=lazy)


def test_a_weight_read_by_another_path() -> None:
    """The error names weight and operation; with the module that reads it as a unit, inner units run inside it."""
    tokens = torch.tensor([0, 3, 6])
    root = nn.Sequential(Crossing())
    with pytest.raises(
        TargetError, match=r"'0\.embedding\.weight' was used by linear\(\) outside .* lazy=\('path', ...\)"
    ):
        pair(root, 12)[1](tokens)
    same(*pair(root, 12, lazy=("0",)), tokens)


class Shares(nn.Module):
    """Two children that hold one layer; the second reads its weight around calling it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Sequential(nn.Linear(6, 6))
        self.second = Reads(self.first[0])

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.second(self.first(x))
        return output


class Reads(nn.Module):
    """Uses its layer's weight before and after running it."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        weight = self.layer.weight
        assert isinstance(weight, Tensor)
        hidden = functional.linear(self.layer(functional.linear(x, weight)), weight)
        assert isinstance(self.layer.weight, Tensor)
        return hidden @ self.layer.weight


def test_a_unit_within_a_unit() -> None:
    """A layer that belongs to two units, one around the other, has its weight throughout both."""
    same(*pair(Shares(), 12, lazy="second"), rows(4, 6))


def test_what_a_weight_will_be() -> None:
    """Outside its unit a weight tells its shape, dtype and the device it will be on, not that it is away."""

    class Asks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.layer = nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            weight = self.layer.weight
            assert weight.device == torch.device("cpu")
            assert not weight.is_cuda
            assert not weight.is_meta
            assert weight.requires_grad
            output: Tensor = self.layer(x.to(weight.device, weight.dtype))
            return output

    same(*pair(Asks(), 7), rows(4, 6))


class Views(nn.Module):
    """Uses a weight through a view of another dtype, in rows, and as it is."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.weight = nn.Parameter(torch.randn(6, 6))

    def forward(self, x: Tensor) -> Tensor:
        turned = torch.view_as_complex(self.weight.view(6, 3, 2))
        z = torch.view_as_complex(x.view(-1, 3, 2))
        return (z[:, None] * turned).real.sum(-1) * (x @ self.weight[2:4].T).sum(-1, keepdim=True) + x * self.weight.T[
            1
        ]


def test_views_of_a_weight() -> None:
    """What the graph saves may be a view of a weight, in part, transposed, or of another dtype."""
    same(*pair(Views(), 7), rows(4, 6))


@define(frozen=True, kw_only=True)
class Flat(GeneratorConfig):
    """A strategy whose weights are all views of one tensor, and which makes each alone in storage of its own."""

    name = "flat"

    def build(self, context: GeneratorContext) -> Generator:
        return FlatGenerator(context)


class FlatGenerator(Generator):
    """theta = base + mapping(z), in one flat tensor."""

    def __init__(self, context: GeneratorContext) -> None:
        super().__init__()
        self._specs = context.layout.mapped
        self.expansion = context.expansion(context.layout.mapped, context.latent_dim, stream=0)

    @property
    def latent_sizes(self) -> dict[str, int]:
        return {"z": self.expansion.latent_size}

    def forward(self, latents: Any, base: Any) -> dict[str, Tensor]:
        made = self.expansion(latents["z"], base)
        flat = torch.cat([made[spec.name].reshape(-1) for spec in self._specs])
        pieces = torch.split(flat, [spec.numel for spec in self._specs])
        return {spec.name: piece.view(spec.shape) for spec, piece in zip(self._specs, pieces, strict=True)}

    def assignment(self) -> dict[str, tuple[str, ...]]:
        return {"z": self.expansion.names}


def test_a_strangers_weights_on_one_storage() -> None:
    """Weights that are views of one tensor, as a strategy of somebody else may make them, get the right gradients."""

    @hookimpl
    def mapping_generators() -> list[type[GeneratorConfig]]:
        return [Flat]

    plugin = type("flat_plugin", (), {"mapping_generators": staticmethod(mapping_generators)})
    registry = Registry.of(mapping_core.builtin, plugin)
    same(*pair(targets.Residual(), 20, strategy="flat", registry=registry), rows(4, 6))


@pytest.mark.parametrize("transform", ["vmap", "grad", "jvp"])
def test_transforms_generate_at_once(transform: str) -> None:
    """Under `torch.func`, which cannot run parts later, the lazy model generates everything and is right."""
    eager, late = pair(targets.mlp(), 7)
    x, vectors = rows(4, 6), rows(3, 7)
    found = []
    for model in (eager, late):

        def run(vector: Tensor, model: MappingModel = model) -> Tensor:
            output: Tensor = torch.func.functional_call(model, {"latent": vector}, (x,))
            return output.square().sum()

        made = {
            "vmap": lambda run=run: torch.func.vmap(run)(vectors),
            "grad": lambda run=run: torch.func.grad(run)(vectors[0]),
            "jvp": lambda run=run: torch.func.jvp(run, (vectors[0],), (vectors[1],))[1],
        }[transform]()
        found.append(made)
    torch.testing.assert_close(found[1], found[0])


def test_under_autocast() -> None:
    """Under autocast, which casts weights on their way, gradients are still the eager ones."""
    eager, late = pair(targets.mlp(), 7)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        same(eager, late, rows(4, 6))


def test_no_gradient_wanted() -> None:
    """Under `no_grad` and `inference_mode`, and with a latent that does not train, the lazy model infers."""
    eager, late = pair(targets.mlp(), 7)
    x = rows(4, 6)
    for context in (torch.no_grad(), torch.inference_mode()):
        with context:
            assert torch.equal(late(x), eager(x))
    late.requires_grad_(False)
    assert torch.equal(late(x), eager(x))
    given = x.clone().requires_grad_()
    late(given).sum().backward()
    assert given.grad is not None
