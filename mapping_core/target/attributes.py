"""What modules hold in plain attributes, where replacing their parameters does not reach."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Iterator, Mapping
from types import FunctionType, MethodType, ModuleType
from typing import Any

from attrs import define
from torch import Tensor, nn

_REGISTERED = frozenset({"_parameters", "_buffers", "_modules"})
#: Attributes that torch keeps right by itself.
_REFRESHED = frozenset({"_flat_weights", "_flat_weight_refs"})
_DEPTH = 5


@define(frozen=True, eq=False)
class Held:
    """A tensor or a registered module that hangs on a plain attribute.

    `owner` is the path of the module with the attribute; `captured` says that a function has
    it in its closure or its defaults, which no copy of the module changes.
    """

    owner: str
    attribute: str
    value: Tensor | nn.Module
    captured: bool

    @property
    def place(self) -> str:
        """The attribute's full name."""
        return f"{self.owner}.{self.attribute}" if self.owner else self.attribute


def held_in_attributes(target: nn.Module) -> Iterator[Held]:
    """What the target's modules hold beside their parameters, buffers and children.

    Looks into lists, dictionaries, sets, plain objects, partial functions, closures, and
    modules that are not registered. Modules that are, are listed only where a function captures them.
    """
    modules = dict(target.named_modules())
    registered = {id(module) for module in modules.values()}
    for path, module in modules.items():
        recurrent = isinstance(module, nn.RNNBase)
        seen: set[int] = set()
        for attribute, value in vars(module).items():
            if (
                attribute in _REGISTERED
                or attribute == "_compiled_call_impl"
                or (recurrent and attribute in _REFRESHED)
            ):
                continue
            for found, captured in _within(value, registered, seen, depth=_DEPTH, captured=False):
                yield Held(path, attribute, found, captured)


def recomputed_attributes(module: nn.Module) -> list[tuple[str, str]]:
    """Where a hook computes a tensor from parameters before each forward: path and attribute.

    Old-style `weight_norm` and `spectral_norm`, and pruning, do: their ``weight`` is a plain attribute.
    """
    return [
        (path, attribute)
        for path, owner in module.named_modules()
        if owner._forward_pre_hooks
        for attribute, value in vars(owner).items()
        if isinstance(value, Tensor) and (value.grad_fn is not None or attribute in _computed_by_hooks(owner))
    ]


def _computed_by_hooks(owner: nn.Module) -> set[str]:
    names: set[str] = set()
    for hook in owner._forward_pre_hooks.values():
        names |= {name for key in ("name", "_tensor_name") if isinstance(name := getattr(hook, key, None), str)}
    return names


def _within(
    value: Any, registered: set[int], seen: set[int], *, depth: int, captured: bool
) -> Iterator[tuple[Tensor | nn.Module, bool]]:
    if isinstance(value, Tensor):
        yield value, captured
        return
    if isinstance(value, nn.Module) and id(value) in registered:
        if captured:
            yield value, True
        return
    if depth == 0 or id(value) in seen or isinstance(value, str | bytes | int | float | type | ModuleType | None):
        return
    seen.add(id(value))
    parts, by_function = _parts(value)
    for part in parts:
        yield from _within(part, registered, seen, depth=depth - 1, captured=captured or by_function)


def _parts(value: Any) -> tuple[list[Any], bool]:
    """What an object is made of, and whether a copy of it would keep just these."""
    if isinstance(value, Mapping):
        return list(value.values()), False
    if isinstance(value, list | tuple | set | frozenset | deque):
        return list(value), False
    if isinstance(value, functools.partial):
        return [value.func, *value.args, *value.keywords.values()], False
    if isinstance(value, MethodType):
        return [value.__self__], False
    if isinstance(value, FunctionType):
        if value.__module__ is None or value.__module__.split(".")[0] == "torch":
            return [], True
        cells = [_contents(cell) for cell in value.__closure__ or ()]
        return [*cells, *(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()], True
    slots = {name for cls in type(value).__mro__ for name in _names(vars(cls).get("__slots__", ()))}
    held = [getattr(value, name, None) for name in slots - {"__dict__", "__weakref__"}]
    return [*held, *getattr(value, "__dict__", {}).values()], False


def _names(slots: Any) -> tuple[str, ...]:
    return (slots,) if isinstance(slots, str) else tuple(slots)


def _contents(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not bound yet
        return None
