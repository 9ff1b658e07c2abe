"""Executing a target under other weights, without ever writing to it."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from mapping_core.errors import TargetError
from mapping_core.target.attributes import held_in_attributes, recomputed_attributes


def skeleton_of(target: nn.Module) -> nn.Module:
    """Copy a module without its weights: every parameter and buffer becomes a meta tensor.

    The copy keeps ties, modes, flags and everything else the module holds, and takes no
    memory worth mentioning; `call` runs it under tensors given from outside.

    >>> skeleton_of(nn.Linear(2, 3)).weight.device
    device(type='meta')
    """
    return _copy_with(target, lambda name, tensor: tensor.detach().to("meta"))


def skeleton_again(skeleton: nn.Module) -> nn.Module:
    """Copy a skeleton; a buffer that its module has made in a pass comes with its values."""
    return _copy_with(skeleton, lambda name, tensor: tensor.detach().clone())


def filled(skeleton: nn.Module, tensors: Mapping[str, Tensor]) -> nn.Module:
    """Copy a skeleton with real weights in it: a plain module that shares nothing with anything."""
    return _copy_with(skeleton, lambda name, tensor: tensors.get(name, tensor).detach().clone())


def _copy_with(module: nn.Module, replacement: Callable[[str, Tensor], Tensor]) -> nn.Module:
    # deepcopy takes what stands in its memo for the copy of an object. So every reference
    # to a parameter, in whatever attribute, list or tie, ends at its one replacement.
    memo: dict[int, Any] = {}
    for name, parameter in module.named_parameters():
        memo[id(parameter)] = nn.Parameter(replacement(name, parameter), requires_grad=parameter.requires_grad)
    for name, buffer in module.named_buffers():
        memo[id(buffer)] = replacement(name, buffer)
    # deepcopy refuses tensors with a graph: what modules remember of a pass is kept without it.
    for held in held_in_attributes(module):
        if isinstance(held.value, Tensor) and held.value.grad_fn is not None:
            memo.setdefault(id(held.value), held.value.detach().clone())
    for path, attribute in recomputed_attributes(module):
        computed = getattr(module.get_submodule(path), attribute)
        memo[id(computed)] = torch.empty_like(computed, device="meta", requires_grad=False)
    try:
        return copy.deepcopy(module, memo)
    except Exception as error:
        raise TargetError(
            f"{type(module).__name__} cannot be copied ({type(error).__name__}: {error}); "
            "mapping needs a target that copy.deepcopy accepts"
        ) from error


def release(skeleton: nn.Module, computed: Sequence[tuple[str, str]], recurrent: Sequence[str]) -> None:
    """Let go of generated weights that modules still hold after a call, in attributes of their own.

    `computed` is as from `recomputed_attributes`; `recurrent` are the paths of recurrent
    layers, which keep a list of their weights.
    """
    for path, attribute in computed:
        held = skeleton.get_submodule(path).__dict__
        held[attribute] = torch.empty_like(held[attribute], device="meta", requires_grad=False)
    for path in recurrent:
        module = skeleton.get_submodule(path)
        assert isinstance(module, nn.RNNBase)
        refresh_flat_weights(module)


def refresh_flat_weights(module: nn.RNNBase) -> None:
    """Make a recurrent layer's list of its weights that of its present parameters.

    The layer compares its parameters with weak references, and makes the list anew when they differ.
    References to weights that live on, such as those kept for inference, must not outlast the list.
    """
    module._flat_weights = [getattr(module, name, None) for name in module._flat_weights_names]
    module._flat_weight_refs = [None if w is None else weakref.ref(w) for w in module._flat_weights]


def call(skeleton: nn.Module, tensors: dict[str, Tensor], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Run a skeleton under `tensors`, which must name all its parameters and buffers, aliases too.

    Where the module puts another tensor in the place of a buffer, it stands in `tensors` afterwards.
    """
    # Aliases are named explicitly, so torch need not search for ties at every call.
    return functional_call(skeleton, tensors, args, dict(kwargs), tie_weights=False)


def copy_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Private copies, detached, each with storage of its own."""
    with torch.no_grad():
        return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def detached(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors without their graph, sharing storage."""
    return {name: tensor.detach() for name, tensor in tensors.items()}
