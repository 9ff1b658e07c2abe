"""Random targets: a grammar of modules for hypothesis, each with inputs that fit.

A target is a chain of steps over one kind of input (rows, sequences, signals, images or
tokens), among them containers of further chains. It is drawn as a description that makes
the same module each time, since a file is loaded onto a target made anew.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from attrs import define, field
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from mapping_core.target.layout import Layout
from mapping_core.target.roles import RoleRules

#: The shape of an input around its features, whose place is None, by kind.
SHAPES: dict[str, tuple[int | None, ...]] = {
    "rows": (3, None),
    "sequence": (3, 4, None),
    "signal": (3, None, 5),
    "image": (3, None, 4, 3),
}
VOCABULARY = 5


@define(frozen=True)
class Step:
    """One module of a chain: how it is called, how it is made, and the features of its output."""

    label: str
    make: Callable[[], nn.Module] = field(repr=False, eq=False)
    width: int

    def __repr__(self) -> str:
        return self.label


class Residual(nn.Module):
    """x + scale * f(x), with a scale of no dimensions."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(()) + 0.5)
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = x + self.scale * self.inner(x)
        return y


class Listed(nn.Module):
    """A chain in a ModuleList."""

    def __init__(self, steps: Sequence[nn.Module]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(steps)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


class Branches(nn.Module):
    """Two chains in a ModuleDict, their features side by side."""

    def __init__(self, left: nn.Module, right: nn.Module, dim: int) -> None:
        super().__init__()
        self.branches = nn.ModuleDict({"left": left, "right-2": right})
        self.dim = dim

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.branches.values()], dim=self.dim)


class Twice(nn.Module):
    """One module under two names, run twice."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.first = inner
        self.second = inner

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.second(torch.tanh(self.first(x)))
        return y


class TiedLinear(nn.Module):
    """Two layers that share a weight and have biases of their own."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, width)
        self.down = nn.Linear(width, width)
        self.down.weight = self.up.weight

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.down(torch.tanh(self.up(x)))
        return y


class LookAlikes(nn.Module):
    """Parameters `a.b` and `a_b`, a list of parameters, and buffers that are saved and not saved."""

    kept: Tensor
    unsaved: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.a = nn.ParameterDict({"b": nn.Parameter(torch.rand(width) + 0.5)})
        self.a_b = nn.Parameter(torch.rand(width))
        self.listed = nn.ParameterList([nn.Parameter(torch.rand(1)), nn.Parameter(torch.rand(()))])
        self.register_buffer("kept", torch.rand(width))
        self.register_buffer("unsaved", torch.rand(1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = x * self.a["b"] + self.a_b * self.listed[0] + self.kept * self.listed[1] + self.unsaved
        return y


class Odd(nn.Module):
    """Parameters that no latent can feed, beside one that it can: integers, complex ones, none at all."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.order = nn.Parameter(torch.randperm(width), requires_grad=False)
        self.phase = nn.Parameter(torch.tensor([0.6 + 0.8j]))
        self.empty = nn.Parameter(torch.empty(0, width))
        self.shift = nn.Parameter(torch.rand(1, width))

    def forward(self, x: Tensor) -> Tensor:
        return x[..., self.order] * self.phase.abs().to(x.dtype) + self.shift + self.empty.sum()


class Recurrent(nn.Module):
    """A recurrent layer without its state."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.layer(x)[0]
        return output


class SelfAttention(nn.Module):
    """Attention of a sequence to itself."""

    def __init__(self, width: int, heads: int, **options: Any) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True, **options)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.attention(x, x, x, need_weights=False)[0]
        return output


class LastOfSequence(nn.Module):
    """A sequence's last element."""

    def forward(self, x: Tensor) -> Tensor:
        return x[:, -1]


class TokenModel(nn.Module):
    """An embedding with a padding row, a chain, and a head that shares the embedding's weight."""

    def __init__(self, width: int, chain: nn.Module, *, padding: int | None) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width, padding_idx=padding)
        self.chain = chain
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.head(self.chain(self.embedding(tokens)))
        return logits


def old_weight_norm(layer: nn.Module) -> nn.Module:
    """Weight normalisation of the kind that computes the weight in a hook, and warns of its age."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return nn.utils.weight_norm(layer)


def _chain(steps: Sequence[Step]) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(*(step.make() for step in steps))


@st.composite
def _layers(draw: st.DrawFn, kind: str, width: int) -> Step:
    """A module without further steps in it."""
    bias = draw(st.booleans())
    out = draw(st.integers(1, 4))
    last = kind in ("rows", "sequence")
    choices = [
        Step("PReLU", lambda: nn.PReLU(width if kind != "sequence" else 1), width),
        Step("Tanh", nn.Tanh, width),
        Step(f"GroupNorm({width})", lambda: nn.GroupNorm(1, width), width),
    ]
    if kind != "sequence":
        norm = {"rows": nn.BatchNorm1d, "signal": nn.BatchNorm1d, "image": nn.BatchNorm2d}[kind]
        affine = draw(st.booleans())
        choices.append(Step(f"{norm.__name__}({width}, affine={affine})", lambda: norm(width, affine=affine), width))
    if last:
        norms: list[Callable[[nn.Module], nn.Module]] = [
            parametrizations.weight_norm,
            old_weight_norm,
            parametrizations.spectral_norm,
        ]
        normed = draw(st.sampled_from(norms))
        choices += [
            Step(f"Linear({width}, {out}, bias={bias})", lambda: nn.Linear(width, out, bias=bias), out),
            Step(f"LayerNorm({width})", lambda: nn.LayerNorm(width, bias=bias), width),
            Step(f"TiedLinear({width})", lambda: TiedLinear(width), width),
            Step(f"LookAlikes({width})", lambda: LookAlikes(width), width),
            Step(f"Odd({width})", lambda: Odd(width), width),
            Step(f"{normed.__name__}(Linear({width}, {out}))", lambda: normed(nn.Linear(width, out)), out),
        ]
    if kind == "sequence":
        choices = [each for each in choices if not each.label.startswith("GroupNorm")]
        cell = draw(st.sampled_from([nn.LSTM, nn.GRU]))
        options: dict[str, Any] = {
            "bidirectional": draw(st.booleans()),
            "num_layers": draw(st.integers(1, 2)),
            "bias": bias,
            "batch_first": True,
        }
        half = draw(st.integers(1, 2))
        full = half * (1 + options["bidirectional"])
        if cell is nn.LSTM and half == 2 and draw(st.booleans()):
            options["proj_size"] = 1
            full //= 2
        heads = draw(st.sampled_from([n for n in (1, 2, 3) if width % n == 0]))
        attention = {"bias": bias, "add_bias_kv": draw(st.booleans())}
        choices += [
            Step(f"{cell.__name__}({width}, {half}, {options})", lambda: Recurrent(cell(width, half, **options)), full),
            Step(f"Attention({width}, {heads}, {attention})", lambda: SelfAttention(width, heads, **attention), width),
            Step(
                f"TransformerEncoderLayer({width}, {heads})",
                lambda: nn.TransformerEncoderLayer(width, heads, 3, dropout=0.0, activation="gelu", batch_first=True),
                width,
            ),
        ]
    if kind == "signal":
        choices.append(Step(f"Conv1d({width}, {out})", lambda: nn.Conv1d(width, out, 3, padding=1, bias=bias), out))
    if kind == "image":
        size, groups = draw(st.sampled_from([(1, 1), (3, 1), (3, width)]))
        out = out if groups == 1 else width
        choices.append(
            Step(
                f"Conv2d({width}, {out}, {size}, groups={groups})",
                lambda: nn.Conv2d(width, out, size, padding=size // 2, groups=groups, bias=bias),
                out,
            )
        )
    return draw(st.sampled_from(choices))


@st.composite
def _steps(draw: st.DrawFn, kind: str, width: int, depth: int) -> Step:
    """A layer, or a container of further steps."""
    container = draw(st.sampled_from(["none", "none", "sequential", "list", "branches", "residual", "twice"]))
    if container == "none" or depth == 0:
        return draw(_layers(kind, width))
    inner = draw(_chains(kind, width, depth - 1, longest=2))
    out = inner[-1].width
    if container == "list":
        return Step(f"ModuleList{inner}", lambda: Listed([step.make() for step in inner]), out)
    if container == "branches":
        other = draw(_chains(kind, width, depth - 1, longest=1))
        dim = SHAPES[kind].index(None)
        return Step(
            f"ModuleDict({inner}, {other})",
            lambda: Branches(_chain(inner)(), _chain(other)(), dim),
            out + other[-1].width,
        )
    if container == "residual" and out == width:
        return Step(f"Residual{inner}", lambda: Residual(_chain(inner)()), width)
    if container == "twice" and out == width:
        return Step(f"Twice{inner}", lambda: Twice(_chain(inner)()), width)
    return Step(f"Sequential{inner}", _chain(inner), out)


@st.composite
def _chains(draw: st.DrawFn, kind: str, width: int, depth: int, longest: int) -> list[Step]:
    steps: list[Step] = []
    for _ in range(draw(st.integers(1, longest))):
        steps.append(draw(_steps(kind, steps[-1].width if steps else width, depth)))
    return steps


@define(frozen=True, kw_only=True)
class Program:
    """The description of a target, the same each time `make` is called, and how to map it.

    `frozen` are positions among the parameters that ask for no gradient, `trained` is the
    position of one that trains directly. `warm` batches run before, so that running
    statistics hold an estimate.
    """

    kind: str
    width: int
    steps: tuple[Step, ...]
    padding: int | None
    frozen: frozenset[int]
    trained: int | None
    warm: int
    extra: int
    seed: int

    def inputs(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """A batch that fits: numbers, or tokens with the padding token among them."""
        generator = torch.Generator().manual_seed(self.seed + 1)
        if self.kind == "tokens":
            return torch.randint(VOCABULARY, (3, 4), generator=generator)
        shape = [self.width if size is None else size for size in SHAPES[self.kind]]
        return torch.randn(shape, generator=generator).to(dtype)

    def make(self) -> nn.Module:
        """The target."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            if self.kind == "tokens":
                module: nn.Module = TokenModel(self.width, _chain(self.steps)(), padding=self.padding)
            elif len(self.steps) == 1:
                module = self.steps[0].make()  # parameters of the root itself
            else:
                module = _chain(self.steps)()
            for _ in range(self.warm):
                module(self.inputs())
        for position, parameter in enumerate(module.parameters()):
            if position in self.frozen:
                parameter.requires_grad_(False)
        return module

    def mapping(self) -> dict[str, Any]:
        """Arguments for `MappingModel`: a budget that fits every strategy, and what trains directly."""
        target = self.make()
        names = [name for name, parameter in target.named_parameters() if _trains(parameter)]
        if self.padding is not None and "embedding.weight" in names:
            names.remove("embedding.weight")  # torch's gradient of its padding row is 0, which is not the derivative
        trained = [] if self.trained is None or len(names) < 2 else [names[self.trained % len(names)]]
        layout = Layout.of(target, RoleRules.of(trained=trained))
        weights = sum(spec.numel for spec in layout.mapped)
        numbers = min(weights, len(layout.layers()) + self.extra)
        return {"latent_dim": numbers + sum(spec.numel for spec in layout.trained), "trained": trained}


def _trains(parameter: nn.Parameter) -> bool:
    return parameter.requires_grad and parameter.is_floating_point() and parameter.numel() > 0


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """Descriptions of targets that have something to map."""
    kind = draw(st.sampled_from(["rows", "sequence", "signal", "image", "tokens"]))
    width = draw(st.integers(1, 4))
    steps = draw(_chains("sequence" if kind == "tokens" else kind, width, 2, longest=3))
    if kind == "tokens" and steps[-1].width != width:
        last = steps[-1].width
        steps.append(Step(f"Linear({last}, {width})", lambda: nn.Linear(last, width), width))
    if kind == "sequence" and draw(st.booleans()):
        steps.append(Step("LastOfSequence", LastOfSequence, steps[-1].width))
    program = Program(
        kind=kind,
        width=width,
        steps=tuple(steps),
        padding=draw(st.none() | st.integers(0, VOCABULARY - 1)) if kind == "tokens" else None,
        frozen=frozenset(draw(st.sets(st.integers(0, 5), max_size=2))),
        trained=draw(st.none() | st.integers(0, 5)),
        warm=draw(st.integers(0, 1)),
        extra=draw(st.integers(0, 5)),
        seed=draw(st.integers(0, 99)),
    )
    return _with_something_to_map(program)


def _with_something_to_map(program: Program) -> Program:
    if any(_trains(parameter) for parameter in program.make().parameters()):
        return program
    width = program.steps[-1].width
    conv = {"signal": nn.Conv1d, "image": nn.Conv2d}.get(program.kind)
    last = Step("Conv", lambda: conv(width, 2, 1), 2) if conv else Step("Linear", lambda: nn.Linear(width, 2), 2)
    return Program(
        kind=program.kind,
        width=program.width,
        steps=(*program.steps, last),
        padding=program.padding,
        frozen=frozenset(),
        trained=program.trained,
        warm=program.warm,
        extra=program.extra,
        seed=program.seed,
    )
