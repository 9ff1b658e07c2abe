"""Lazy generation: the weights of one unit exist while it runs, and again while its gradient is computed.

Eager generation makes all weights before the target runs, and the graph keeps them until
the backward pass has gone through. For very large targets, `LazyExecution` generates a unit's
weights when the unit is called, hands the graph a note instead of the weights, and
generates them once more when the backward pass asks. Peak memory is then the base, the
activations, and one unit's weights; the price is generating twice.

A *unit* is a module that uses its weights in its own `forward` alone, as nearly all do. Where
a module reads the weights of another (``self.fc.weight`` in the parent's `forward`), name the
parent as a unit. Not for `torch.compile` or `vmap`, which run the graph elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from attrs import define
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.func import functional_call
from torch.utils._pytree import tree_leaves

from mapping_core.errors import TargetError
from mapping_core.target.execution import refresh_flat_weights
from mapping_core.target.roles import Pattern, holders_of, matches_module

#: Modules of torch that read their children's weights themselves.
_READS_CHILDREN = (nn.MultiheadAttention, nn.TransformerEncoderLayer)

#: What a weight without values may be asked.
_HARMLESS = frozenset(
    [
        "shape",
        "dtype",
        "device",
        "layout",
        "ndim",
        "requires_grad",
        "is_leaf",
        "grad",
        "is_meta",
        "is_cuda",
        "size",
        "dim",
        "numel",
        "stride",
        "is_floating_point",
        "is_complex",
        "__len__",
        "__repr__",
        "__hash__",
    ]
)

Provider = Callable[[Mapping[str, Tensor], frozenset[str]], dict[str, Tensor]]


@define(frozen=True)
class Slot:
    """Where a generated parameter goes: the module at `owner`, under `leaf`; `name` is its first name."""

    owner: str
    leaf: str
    name: str


@define(frozen=True)
class _Note:
    """What the graph keeps in the place of a generated weight (or of a view of one)."""

    name: str
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


def find_units(
    skeleton: nn.Module, first_names: Mapping[str, str], chosen: tuple[Pattern, ...]
) -> dict[str, tuple[Slot, ...]]:
    """Divide the mapped parameters into units, by the path of the module that runs each.

    `first_names` maps every name of a mapped parameter, aliases too, to its first one;
    `chosen` are patterns of modules to take as units as they are.
    """
    modules = dict(skeleton.named_modules())
    units: dict[str, list[Slot]] = {}
    for name, first in first_names.items():
        owner, _, leaf = name.rpartition(".")
        if owner in modules:  # a module under two paths is one unit, under its first
            units.setdefault(_unit_of(owner, modules, chosen), []).append(Slot(owner, leaf, first))
    return {path: tuple(slots) for path, slots in units.items()}


def _unit_of(owner: str, modules: Mapping[str, nn.Module], chosen: tuple[Pattern, ...]) -> str:
    """The outermost holder of `owner` that must be a unit; by default the owner itself."""
    for path in reversed(holders_of(f"{owner}.weight" if owner else "weight")):
        module = modules[path]
        if any(matches_module(pattern, path, modules) for pattern in chosen):
            return path
        if isinstance(module, _READS_CHILDREN) or hasattr(module, "parametrizations"):
            return path
    # A container such as ParameterList never runs: whoever holds it reads its parameters.
    while owner and type(modules[owner]).forward is nn.Module.forward:
        owner = owner.rpartition(".")[0]
    return owner


class _Absent(nn.Parameter):
    """Stands for a weight while its unit does not run: it has a shape, but no values.

    The skeleton's meta tensors would not do: some operations (`functional.linear` is one) take a meta tensor
    beside real ones and return memory as it lies.
    """

    weight_name: str

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = func.__self__.__name__ if func.__name__ == "__get__" else func.__name__
        if name in _HARMLESS:
            return super().__torch_function__(func, types, args, kwargs or {})  # type: ignore[no-untyped-call]
        absent = next(leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, cls))
        raise TargetError(
            f"lazy generation: {absent.weight_name!r} was used by {name}() outside the forward() of the module that "
            "owns it; name the module that uses it as a unit, lazy=('path', ...), or use lazy=False"
        )


class LazyExecution:
    """One call of a skeleton whose mapped weights come from `provider` unit by unit."""

    def __init__(self, skeleton: nn.Module, units: Mapping[str, tuple[Slot, ...]], provider: Provider) -> None:
        self._skeleton = skeleton
        self._units = units
        self._provider = provider

    def call(
        self, latents: Mapping[str, Tensor], kept: dict[str, Tensor], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        """Run the skeleton; `kept` are the tensors no latent feeds."""
        # The backward pass must see the latents of this call, whatever the optimiser does meanwhile.
        values = {name: latent.detach().clone() for name, latent in latents.items()}
        alive: dict[int, str] = {}  # storage address -> name, of the weights of the unit that is running

        def pack(tensor: Tensor) -> Tensor | _Note:
            name = alive.get(tensor.untyped_storage().data_ptr())
            if name is None:
                return tensor
            return _Note(name, tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset()))

        def unpack(saved: Tensor | _Note) -> Tensor:
            if isinstance(saved, Tensor):
                return saved
            with torch.no_grad():
                weight = self._provider(values, frozenset({saved.name}))[saved.name]
            return weight.as_strided(saved.size, saved.stride, saved.offset)

        with ExitStack() as stack:
            for path, slots in self._units.items():
                stack.enter_context(self._holding(path, slots, latents, alive))
            stack.enter_context(saved_tensors_hooks(pack, unpack))
            return functional_call(self._skeleton, kept, args, dict(kwargs), tie_weights=False)

    @contextmanager
    def _holding(
        self, path: str, slots: tuple[Slot, ...], latents: Mapping[str, Tensor], alive: dict[int, str]
    ) -> Iterator[None]:
        """Inside, the module at `path` has generated weights whenever it runs, and none otherwise."""
        unit = self._skeleton.get_submodule(path)
        owners = [(self._skeleton.get_submodule(slot.owner), slot) for slot in slots]
        empty = {slot: owner._parameters[slot.leaf] for owner, slot in owners}
        absent = {slot: _absent(slot, parameter) for slot, parameter in empty.items()}
        names = frozenset(slot.name for slot in slots)
        running: list[list[int]] = []

        def put(tensor_of: Callable[[Slot], Any]) -> None:
            for owner, slot in owners:
                owner._parameters[slot.leaf] = tensor_of(slot)
            for module in {id(owner): owner for owner, _ in owners}.values():
                if isinstance(module, nn.RNNBase):  # it keeps a list of its weights beside
                    refresh_flat_weights(module)

        def before(_module: nn.Module, _args: Any) -> None:
            weights = self._provider(latents, names)
            addresses = []
            for name, weight in weights.items():
                address = weight.untyped_storage().data_ptr()
                alive[address] = name
                addresses.append(address)
            running.append(addresses)
            put(lambda slot: weights[slot.name])

        def after(_module: nn.Module, _args: Any, _output: Any) -> None:
            for address in running.pop():
                alive.pop(address, None)
            put(absent.__getitem__)

        # First in line before and last after: old-style weight_norm and spectral_norm compute
        # their weight in hooks of their own.
        handles = [
            unit.register_forward_pre_hook(before, prepend=True),
            unit.register_forward_hook(after, always_call=True),
        ]
        put(absent.__getitem__)
        try:
            yield
        finally:
            put(empty.__getitem__)
            for handle in handles:
                handle.remove()


def _absent(slot: Slot, parameter: Tensor | None) -> _Absent:
    assert parameter is not None
    made = _Absent(parameter.detach(), parameter.requires_grad)
    made.weight_name = slot.name
    return made
