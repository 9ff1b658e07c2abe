"""The first passes through a target are watched for what generated weights cannot survive."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import CodeType
from typing import Any

import torch.utils.checkpoint
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mapping_core.errors import TargetError

_CHECKPOINT_FILE = torch.utils.checkpoint.__file__


@contextmanager
def watched(
    skeleton: nn.Module,
    boundary: CodeType,
    frozen: Mapping[str, torch.Tensor],
    originals: Mapping[int, str],
    written_to: Callable[[str, bool], None],
    *,
    gradient: bool,
) -> Iterator[None]:
    """Raise `TargetError` when, inside, the skeleton is run in a way that generated weights do not survive.

    Activation checkpointing *in* the target: a checkpointed block runs again during the
    backward pass, when its module no longer holds the generated weights. Without a `gradient`
    there is no backward pass. `boundary` is the code of the function that runs the target:
    checkpointing around the whole mapped model is further out, and fine.

    A weight used through a reference that is not the module's own: the skeleton has no values
    there, and some operations (`functional.linear` is one) take a tensor without values
    beside real ones and return memory as it lies. The same for a weight of the user's own
    module, reached through a global: `originals` has the names by the tensors' ids.

    A write to a `frozen` parameter: `written_to` is called before it happens, with the name and
    whether it is an embedding's ``max_norm``.
    """
    names = {module: name for name, module in skeleton.named_modules()}

    def look(module: nn.Module, _args: Any) -> None:
        if gradient and _is_checkpointed(boundary):
            raise _checkpointed(f"its block {names[module]!r} ({type(module).__name__})")

    handles = [module.register_forward_pre_hook(look) for module in names]
    try:
        with _Watch(skeleton, boundary, frozen, originals, written_to, gradient):
            yield
    finally:
        for handle in handles:
            handle.remove()


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Looks at the tensors of every operation."""

    def __init__(
        self,
        skeleton: nn.Module,
        boundary: CodeType,
        frozen: Mapping[str, torch.Tensor],
        originals: Mapping[int, str],
        written_to: Callable[[str, bool], None],
        gradient: bool,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._skeleton = skeleton
        self._boundary = boundary
        self._gradient = gradient
        empty = {id(tensor): name for name, tensor in _tensors(skeleton).items() if tensor.is_meta}
        self._out_of_reach = {**originals, **empty}
        self._frozen = {tensor.untyped_storage().data_ptr(): name for name, tensor in frozen.items() if tensor.numel()}
        self._written_to = written_to

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is torch.ops.aten.detach.default:  # asks for no value
            return func(*args, **(kwargs or {}))
        given = {id(leaf) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)}
        for key in given & self._out_of_reach.keys():
            raise TargetError(
                f"{self._out_of_reach[key]!r} is used through a reference that is not its module's own (an attribute, "
                "a closure, a global, a cache) and that generated weights do not reach: read it from its module in "
                "forward()"
            )
        if self._gradient and _is_checkpointed(self._boundary):
            for name, tensor in _tensors(self._skeleton).items():
                if id(tensor) in given:
                    raise _checkpointed(f"a function that uses {name!r}")
        if self._frozen and func._schema.is_mutable:
            for tensor in _written(func, args, kwargs or {}):
                if written := self._frozen.get(tensor.untyped_storage().data_ptr()):
                    self._written_to(written, func is torch.ops.aten.embedding_renorm_.default)
        return func(*args, **(kwargs or {}))


def _written(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
    """The tensors that an operation is about to write to."""
    given = {**dict(zip((each.name for each in func._schema.arguments), args, strict=False)), **kwargs}
    outputs = [given.get(each.name) for each in func._schema.arguments if each.alias_info and each.alias_info.is_write]
    return [leaf for leaf in tree_leaves(outputs) if isinstance(leaf, torch.Tensor)]


def _tensors(skeleton: nn.Module) -> dict[str, torch.Tensor]:
    return {**dict(skeleton.named_parameters()), **dict(skeleton.named_buffers())}


def _is_checkpointed(boundary: CodeType) -> bool:
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code is not boundary:
        if frame.f_code.co_filename == _CHECKPOINT_FILE:
            return True
        frame = frame.f_back
    return False


def _checkpointed(what: str) -> TargetError:
    return TargetError(
        f"the target checkpoints {what}, whose recomputation would not see the generated weights: turn that off and "
        "checkpoint the whole mapped model instead, torch.utils.checkpoint.checkpoint(model, x, use_reentrant=False)"
    )
