"""Lazy generation: the weights of one unit exist while it runs, and again while its gradient is computed.

Eager generation makes all weights before the target runs, and the graph keeps them until
the backward pass has gone through. For very large targets, `LazyExecution` generates a unit's
weights when the unit is called, hands the graph a note instead of the weights, and
generates them once more when the backward pass asks. Peak memory is then the base, the
activations, and one unit's weights; the price is generating twice.

A *unit* is a module that uses its weights in its own `forward` alone, as nearly all do. Where
a module reads the weights of another (``self.fc.weight`` in the parent's `forward`), name the
parent as a unit. `torch.compile` and the transforms of `torch.func` run the graph elsewhere:
under them all weights are generated at once.
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
from mapping_core.faults import did_you_mean
from mapping_core.target.execution import refresh_flat_weights
from mapping_core.target.roles import Pattern, holders_of, matches_module
from mapping_core.target.slices import Rows, run_in_slices, slices_of

#: Modules of torch that read their children's weights themselves.
_READS_CHILDREN = (nn.MultiheadAttention, nn.TransformerEncoderLayer)

#: What a weight without values may be asked.
_HARMLESS = {
    "shape",
    "dtype",
    "layout",
    "ndim",
    "requires_grad",
    "is_leaf",
    "grad",
    "size",
    "dim",
    "numel",
    "stride",
} | {*("is_floating_point", "is_complex", "__len__", "__repr__", "__hash__")}

#: Generates some parameters under given latents; of these, some rows alone unless the last is None.
Provider = Callable[[Mapping[str, Tensor], frozenset[str], Rows | None], dict[str, Tensor]]


#: Storage address -> name, rows and dtype, of the weights of the units that are running.
_Alive = dict[int, tuple[str, Rows | None, torch.dtype]]


@define(frozen=True)
class Slot:
    """Where a generated parameter goes: the module at `owner`, under `leaf`; `name` is its first name."""

    owner: str
    leaf: str
    name: str


@define(frozen=True)
class _Note:
    """What the graph keeps in the place of a generated weight, or some rows of it, or of a view of these."""

    name: str
    rows: Rows | None
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


def find_units(
    skeleton: nn.Module, first_names: Mapping[str, str], chosen: tuple[Pattern, ...]
) -> dict[str, tuple[Slot, ...]]:
    """Divide the mapped parameters into units, by the path of the module that runs each.

    `first_names` maps every name of a mapped parameter, aliases too, to its first one;
    `chosen` are patterns of modules to take as units as they are; raises `TargetError` for
    one that matches no module.
    """
    modules = dict(skeleton.named_modules(remove_duplicate=False))
    for pattern in chosen:
        if not any(matches_module(pattern, path, modules) for path in modules):
            shown = pattern if isinstance(pattern, str) else pattern.__name__
            hint = did_you_mean(shown, filter(None, modules))
            raise TargetError(f"lazy={shown!r} matches no module" + (f"; {hint}" if hint else ""))
    first_path = {id(module): path for path, module in reversed(modules.items())}
    units: dict[str, dict[Slot, None]] = {}
    for name, first in first_names.items():
        owner, _, leaf = name.rpartition(".")
        # A module under two paths is one module, but each path may belong to a unit of its own.
        unit = first_path[id(modules[_unit_of(owner, modules, chosen)])]
        units.setdefault(unit, {})[Slot(first_path[id(modules[owner])], leaf, first)] = None
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
    weight_device: torch.device

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = func.__self__.__name__ if func.__name__ == "__get__" else func.__name__
        absent = next(leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, cls))
        if name in ("device", "is_cuda", "is_meta"):  # as the weight will be
            return getattr(torch.empty(0, device=absent.weight_device), name)
        if name in _HARMLESS:
            return super().__torch_function__(func, types, args, kwargs or {})  # type: ignore[no-untyped-call]
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
        alive: _Alive = {}

        def pack(tensor: Tensor) -> Tensor | _Note:
            name, rows, dtype = alive.get(tensor.untyped_storage().data_ptr(), (None, None, None))
            if name is None or dtype != tensor.dtype:
                return tensor
            return _Note(name, rows, tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset()))

        def unpack(saved: Tensor | _Note) -> Tensor:
            if isinstance(saved, Tensor):
                return saved
            with torch.no_grad():
                weight = _alone(self._provider(values, frozenset({saved.name}), saved.rows)[saved.name])
            return weight.as_strided(saved.size, saved.stride, saved.offset)

        with ExitStack() as stack:
            for path, slots in self._units.items():
                slices = slices_of(self._skeleton.get_submodule(path))
                if slices and any(slot == Slot(path, "weight", slot.name) for slot in slots):
                    stack.enter_context(self._slicing(path, slots, slices, latents, alive))
                else:
                    stack.enter_context(self._holding(path, slots, latents, alive))
            stack.enter_context(saved_tensors_hooks(pack, unpack))
            return functional_call(self._skeleton, kept, args, dict(kwargs), tie_weights=False)

    @contextmanager
    def _slicing(
        self,
        path: str,
        slots: tuple[Slot, ...],
        slices: list[Rows],
        latents: Mapping[str, Tensor],
        alive: _Alive,
    ) -> Iterator[None]:
        """Inside, the large layer at `path` runs a few rows at a time, as `mapping_core.target.slices` says."""
        unit = self._skeleton.get_submodule(path)
        names = {slot.leaf: slot.name for slot in slots}
        device = next(iter(latents.values())).device

        def part(rows: Rows) -> tuple[Tensor, Tensor | None]:
            # The last rows are gone; what takes their place in memory must not be taken for them.
            alive.clear()
            weights = self._provider(latents, frozenset(names.values()), rows)
            weights = {name: _alone(weight) for name, weight in weights.items()}
            alive.update({w.untyped_storage().data_ptr(): (name, rows, w.dtype) for name, w in weights.items()})
            bias = unit.bias
            if "bias" in names:
                return weights[names["weight"]], weights[names["bias"]]
            return weights[names["weight"]], bias[slice(*rows)] if isinstance(bias, Tensor) else None

        def forward(input: Tensor) -> Tensor:  # noqa: A002, the layers call it so
            before = dict(alive)
            try:
                return run_in_slices(unit, input, slices, part)
            finally:
                alive.clear()
                alive.update(before)

        empty = {slot.leaf: unit._parameters[slot.leaf] for slot in slots}
        for slot in slots:
            unit._parameters[slot.leaf] = _absent(slot, unit._parameters[slot.leaf], device)  # type: ignore[arg-type]
        unit.forward = forward
        try:
            yield
        finally:
            del unit.forward
            unit._parameters.update(empty)

    @contextmanager
    def _holding(
        self,
        path: str,
        slots: tuple[Slot, ...],
        latents: Mapping[str, Tensor],
        alive: _Alive,
    ) -> Iterator[None]:
        """Inside, the module at `path` has generated weights whenever it runs, and none otherwise."""
        unit = self._skeleton.get_submodule(path)
        owners = [(self._skeleton.get_submodule(slot.owner), slot) for slot in slots]
        device = next(iter(latents.values())).device
        names = frozenset(slot.name for slot in slots)
        running: list[tuple[list[int], dict[Slot, Any]]] = []

        def held() -> dict[Slot, Any]:
            return {slot: owner._parameters[slot.leaf] for owner, slot in owners}

        def put(tensor_of: Callable[[Slot], Any]) -> None:
            for owner, slot in owners:
                owner._parameters[slot.leaf] = tensor_of(slot)
            for module in {id(owner): owner for owner, _ in owners}.values():
                if isinstance(module, nn.RNNBase):  # it keeps a list of its weights beside
                    refresh_flat_weights(module)

        def before(_module: nn.Module, _args: Any) -> None:
            weights = self._provider(latents, names, None)
            weights = {name: _alone(weight) for name, weight in weights.items()}
            addresses = {weight.untyped_storage().data_ptr(): name for name, weight in weights.items()}
            alive.update({address: (name, None, weights[name].dtype) for address, name in addresses.items()})
            running.append((list(addresses), held()))
            put(lambda slot: weights[slot.name])

        def after(_module: nn.Module, _args: Any, _output: Any) -> None:
            # A unit may run inside another that holds the same module, or inside itself.
            addresses, previous = running.pop()
            for address in addresses:
                alive.pop(address, None)
            put(previous.__getitem__)

        # First in line before and last after: old-style weight_norm and spectral_norm compute
        # their weight in hooks of their own.
        handles = [
            unit.register_forward_pre_hook(before, prepend=True),
            unit.register_forward_hook(after, always_call=True),
        ]
        empty = held()
        absent = {slot: _absent(slot, parameter, device) for slot, parameter in empty.items()}
        put(absent.__getitem__)
        try:
            yield
        finally:
            put(empty.__getitem__)
            for handle in handles:
                handle.remove()


def _absent(slot: Slot, parameter: Tensor, device: torch.device) -> _Absent:
    made = parameter if isinstance(parameter, _Absent) else _Absent(parameter.detach(), parameter.requires_grad)
    made.weight_name = slot.name
    made.weight_device = device
    return made


def _alone(weight: Tensor) -> Tensor:
    """The weight in storage of its own: a saved tensor is recognised by its storage."""
    return weight if weight.untyped_storage().nbytes() == weight.nbytes else weight.clone()
