"""Executing a target under other weights, without ever writing to it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from mapping_core.errors import TargetError


def skeleton_of(target: nn.Module) -> nn.Module:
    """Copy a module without its weights: every parameter and buffer becomes a meta tensor.

    The copy keeps ties, modes, flags and everything else the module holds, and takes no
    memory worth mentioning; `call` runs it under tensors given from outside.

    >>> skeleton_of(nn.Linear(2, 3)).weight.device
    device(type='meta')
    """
    return _copy_with(target, lambda name, tensor: tensor.detach().to("meta"))


def filled(skeleton: nn.Module, tensors: Mapping[str, Tensor]) -> nn.Module:
    """Copy a skeleton with real weights in it: a plain module that shares nothing with anything."""
    return _copy_with(skeleton, lambda name, tensor: tensors[name].detach().clone())


def _copy_with(module: nn.Module, replacement: Callable[[str, Tensor], Tensor]) -> nn.Module:
    # deepcopy takes what stands in its memo for the copy of an object. So every reference
    # to a parameter, in whatever attribute, list or tie, ends at its one replacement.
    memo: dict[int, Any] = {}
    for name, parameter in module.named_parameters():
        memo[id(parameter)] = nn.Parameter(replacement(name, parameter), requires_grad=parameter.requires_grad)
    for name, buffer in module.named_buffers():
        memo[id(buffer)] = replacement(name, buffer)
    try:
        return copy.deepcopy(module, memo)
    except Exception as error:
        raise TargetError(
            f"{type(module).__name__} cannot be copied ({type(error).__name__}: {error}); "
            "mapping needs a target that copy.deepcopy accepts"
        ) from error


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
