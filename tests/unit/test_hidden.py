"""References to weights that replacing a module's parameters does not reach: refused by name, or caught when used."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
import torch
from attrs import define
from torch import Tensor, nn
from torch.nn import functional

from mapping_core import MappingModel, TargetError
from mapping_core.target.attributes import held_in_attributes, recomputed_attributes
from mapping_core.target.hidden import refuse_hidden_parameters
from tests import targets


@define
class Slotted:
    """An object without a `__dict__`."""

    inner: Any


class Plain:
    """An object with one."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def method(self, x: Tensor) -> Tensor:
        output: Tensor = x @ self.inner
        return output


class OneSlot:
    """An object whose slots are given as one string."""

    __slots__ = "inner"

    def __init__(self, inner: Any) -> None:
        self.inner = inner


def closure(weight: Tensor) -> Callable[[Tensor], Tensor]:
    """Return a function over a weight."""

    def call(x: Tensor) -> Tensor:
        return x @ weight

    return call


def default(weight: Tensor) -> Callable[..., Tensor]:
    """Return functions with a weight in their defaults."""

    def call(x: Tensor, weight: Tensor = weight) -> Tensor:
        return x @ weight

    return call


def keyword_default(weight: Tensor) -> Callable[..., Tensor]:
    """Return a function with a weight in a keyword's default."""

    def call(x: Tensor, *, weight: Tensor = weight) -> Tensor:
        return x @ weight

    return call


def unregistered(weight: Tensor) -> nn.Module:
    """Return a module with the weight, which will be in a plain list."""
    module = nn.Linear(6, 6, bias=False)
    module.register_parameter("weight", weight)  # type: ignore[arg-type]
    return module


HOLDERS: dict[str, Callable[[Tensor], Any]] = {
    "itself": lambda weight: (weight,),
    "list": lambda weight: [1, [weight]],
    "dictionary": lambda weight: {"a": {"b": weight}},
    "set": lambda weight: {weight},
    "deque": lambda weight: deque([weight]),
    "object": Plain,
    "slots": Slotted,
    "one_slot": OneSlot,
    "partial": lambda weight: functools.partial(functional.linear, weight=weight),
    "partial_argument": lambda weight: functools.partial(torch.mul, weight),
    "method": lambda weight: Plain(weight).method,
    "closure": closure,
    "closure_in_list": lambda weight: [closure(weight)],
    "default": default,
    "keyword_default": keyword_default,
    "unregistered_module": lambda weight: [unregistered(weight)],
}


def target() -> nn.Module:
    """Return a network whose first layer is square."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))


@pytest.mark.parametrize("holder", HOLDERS)
def test_a_parameter_held_elsewhere(holder: str) -> None:
    """Wherever a plain attribute has it, the parameter and the attribute are named, and nothing is changed."""
    module = target()
    owner = module.get_submodule("2")
    owner.kept = HOLDERS[holder](module.get_parameter("0.weight"))
    with pytest.raises(TargetError, match=r"parameter '0\.weight' is also held by the plain attribute '2\.kept'"):
        MappingModel(module, 12)


@pytest.mark.parametrize(
    "view",
    [
        lambda weight: weight.detach(),
        lambda weight: weight.data,
        lambda weight: weight[1:3],
        lambda weight: weight.view(-1),
        lambda weight: [weight.detach().T],
    ],
    ids=["detached", "data", "rows", "flat", "transposed_in_list"],
)
def test_a_view_of_a_parameter(view: Callable[[Tensor], Any]) -> None:
    """A tensor on the memory of a parameter, which would keep the old values, is refused with both names."""
    module = target()
    module.kept = view(module.get_parameter("0.weight"))
    with pytest.raises(TargetError, match=r"attribute 'kept' shares the memory of parameter '0\.weight'"):
        MappingModel(module, 12)


def test_two_names_on_one_memory() -> None:
    """A buffer on the memory of a parameter is refused; two frozen ones, which never change, are not."""
    module = target()
    module.register_buffer("twin", module.get_parameter("0.weight").detach())
    with pytest.raises(TargetError, match=r"'0\.weight' and 'twin' share memory without being one parameter"):
        MappingModel(module, 12)
    module.get_parameter("0.weight").requires_grad_(False)
    x = torch.randn(4, 6)
    assert torch.equal(MappingModel(module, 12).eval()(x), module.eval()(x))


class CapturesItself(nn.Module):
    """Makes a function of itself."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)
        self.run: Callable[[Tensor], Any] = lambda x: self.layer(x)

    def forward(self, x: Tensor) -> Any:
        return self.run(x)


def test_a_function_that_captures_a_module() -> None:
    """A function over the user's own module would run that one in every copy: it is refused, as attribute or hook."""
    with pytest.raises(TargetError, match=r"attribute 'run' captures the target's own module '\(root\)'"):
        MappingModel(CapturesItself(), 6)
    module = target()
    layer = module.get_submodule("2")
    module.register_forward_hook(lambda *_: layer.zero_grad())
    with pytest.raises(TargetError, match=r"attribute '_forward_hooks' captures the target's own module '2'"):
        MappingModel(module, 12)


class Harmless(nn.Module):
    """Attributes that a copy of the module keeps right."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(6, 6)
        self.lstm = nn.LSTM(6, 3, batch_first=True)
        self.layers = [self.layer, {"again": self.layer}]
        self.function = functional.relu
        self.method = self.layer.forward
        self.later = functools.partial(self._add, 1.0)
        self.start = self.layer.weight.detach().clone()
        self.table = torch.arange(6.0)
        self.itself: Any = {}
        self.itself["again"] = self.itself
        self.unbound = self._unbound()

    @staticmethod
    def _unbound() -> Callable[[], object]:
        never = 1

        def call() -> object:
            return never  # noqa: F821 - gone by then: the function's cell is empty

        del never
        return call

    def _add(self, value: float, x: Tensor) -> Tensor:
        return x + value

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.later(self.method(self.function(self.layers[0](x)))) + self.table  # type: ignore[operator]
        output: Tensor = self.lstm(hidden[:, None])[0][:, 0]
        return output


def test_what_is_no_danger() -> None:
    """Registered modules in lists, bound methods, partials of these, functions, clones and cycles are fine."""
    module = Harmless()
    refuse_hidden_parameters(module)
    model = targets.moved(MappingModel(module, 20))
    targets.assert_equals_direct(model, torch.randn(5, 6))
    assert model.skeleton.method.__self__ is model.skeleton.layer  # type: ignore[union-attr]


def test_what_is_found() -> None:
    """The walk tells owner, attribute, and whether a function holds the tensor; registered tensors are left out."""
    module = target()
    first = torch.zeros(2)
    vars(module)["kept"] = [first]
    module.get_submodule("0").run = closure(first)  # type: ignore[assignment]
    found = {(held.place, held.captured) for held in held_in_attributes(module)}
    assert found == {("kept", False), ("0.run", True)}


def test_sparse_and_empty_attributes() -> None:
    """Tensors without an address are nothing to compare."""
    module = target()
    vars(module)["kept"] = [torch.eye(3).to_sparse(), torch.zeros(0), torch.zeros(2, device="meta")]
    refuse_hidden_parameters(module)


@pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated")
def test_recomputed_attributes() -> None:
    """What a hook computes before each forward is known, also before the first one."""
    linear = nn.utils.spectral_norm(nn.Linear(3, 3))
    assert recomputed_attributes(nn.Sequential(linear, nn.utils.weight_norm(nn.Linear(3, 3)))) == [
        ("0", "weight"),
        ("1", "weight"),
    ]
    assert recomputed_attributes(targets.mlp()) == []
    refuse_hidden_parameters(linear)


class Deep(nn.Module):
    """Holds a tensor too deep for the walk, and uses it in one of several ways."""

    def __init__(self, way: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(6, 6)
        self.register_buffer("table", torch.ones(6, 6))
        self.way = way
        self.deep = [[[[[[[self.layer.weight]]]]]]]
        self.alias = self.table

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.layer(x)
        if self.way == "linear":
            return functional.linear(hidden, self.deep[0][0][0][0][0][0][0])
        if self.way == "product":
            return hidden * self.deep[0][0][0][0][0][0][0][0]
        if self.way == "buffer":
            return hidden @ self.alias  # type: ignore[operator]
        assert self.deep[0][0][0][0][0][0][0].shape == (6, 6)
        return hidden


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize(
    ("way", "name"), [("linear", "layer.weight"), ("product", "layer.weight"), ("buffer", "table")]
)
def test_what_the_walk_does_not_find_is_caught_in_the_first_pass(way: str, name: str, lazy: bool) -> None:
    """Using it raises and names it, with and without a gradient, instead of computing with memory as it lies."""
    model = MappingModel(Deep(way), 12, lazy=lazy)
    x = torch.randn(4, 6)
    for _ in range(2):
        with pytest.raises(TargetError, match=f"'{name}' is used through a reference that is not its module's own"):
            model(x)
        with torch.no_grad(), pytest.raises(TargetError, match=f"'{name}' is used through a reference"):
            model.eval()(x)


def test_a_reference_that_is_not_used() -> None:
    """Asking such a tensor for its shape is fine."""
    module = Deep("shape")
    x = torch.randn(4, 6)
    assert torch.equal(MappingModel(module, 12)(x), module(x))


def test_the_watch_leaves_nothing_behind() -> None:
    """Whether a pass succeeds or fails, no hook and no mode stays, and results are those of later passes."""
    model = targets.moved(MappingModel(targets.mlp(), 16))
    x = torch.randn(4, 6)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        model(x[:, :5])
    first = model(x)
    assert torch.equal(model(x), first)
    assert not any(module._forward_pre_hooks for module in model.skeleton.modules())
    assert not torch.utils._python_dispatch._get_current_dispatch_mode_stack()


class ReachesAGlobal(nn.Module):
    """Uses whatever module stands in `GLOBAL`, or its weight alone, instead of its own."""

    def __init__(self, *, weight_alone: bool) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.weight_alone = weight_alone

    def forward(self, x: Tensor) -> Tensor:
        module = GLOBAL[0]
        assert isinstance(module, ReachesAGlobal)
        output: Tensor = nn.functional.linear(x, module.layer.weight) if self.weight_alone else module.layer(x)
        return output


GLOBAL: list[nn.Module] = []


@pytest.mark.parametrize("weight_alone", [False, True])
@pytest.mark.parametrize("lazy", [False, True])
def test_a_weight_reached_through_a_global(weight_alone: bool, lazy: bool) -> None:
    """A target that reaches its own weights through a global would train nothing: the first pass says so."""
    target = ReachesAGlobal(weight_alone=weight_alone)
    GLOBAL[:] = [target]
    model = MappingModel(target, 4, lazy=lazy)
    for _ in range(2):
        with pytest.raises(TargetError, match=r"'layer\.weight' is used through a reference"):
            model(torch.randn(2, 3))
    with torch.no_grad(), pytest.raises(TargetError, match=r"'layer\.weight' is used through a reference"):
        model.eval()(torch.randn(2, 3))
