"""Thin layers: two in the place of one."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from attrs import define
from torch import Tensor, nn

from mapping_core import TargetError

#: The layers that two layers of the same kind can stand for.
DIVISIBLE: tuple[type[nn.Module], ...] = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


@define(frozen=True)
class Pair:
    """The factors of a layer's weight: `left` [out, rank] and `right` [rank, in * kernel]."""

    left: Tensor
    right: Tensor


def why_not(layer: nn.Module) -> str | None:
    """Why a layer cannot be two thin ones; None where it can."""
    if type(layer) not in DIVISIBLE:
        return f"is of type {type(layer).__name__}, and only Linear and Conv layers can be two thin ones"
    if getattr(layer, "groups", 1) != 1:
        return "is a convolution in groups"
    return None


def with_thin_layers(module: nn.Module, pairs: Mapping[str, Pair]) -> nn.Module:
    """A copy of `module` in which the layers at the paths in `pairs` are `nn.Sequential` of two thin ones.

    Raises `TargetError` for a layer that cannot be, or that shares its weight with another.
    """
    owners: dict[int, set[int]] = {}
    for layer in module.modules():
        for parameter in layer.parameters(recurse=False):
            owners.setdefault(id(parameter), set()).add(id(layer))
    thin: dict[int, nn.Module] = {}
    for path, pair in pairs.items():
        layer = module.get_submodule(path)
        reason = why_not(layer)
        if reason is None and len(owners[id(layer.weight)]) > 1:
            reason = "shares its weight with another module"
        if reason is not None:
            raise TargetError(f"{path or 'the module'!r} {reason}: leave it out of layers=")
        thin[id(layer)] = _two(layer, pair)
    # What the memo holds takes the place of a layer wherever it is referred to.
    copied: nn.Module = copy.deepcopy(module, dict(thin))
    return copied


def _two(layer: nn.Module, pair: Pair) -> nn.Sequential:
    weight = layer.get_parameter("weight")
    rank = len(pair.right)
    options: dict[str, Any] = {"dtype": weight.dtype, "device": weight.device}
    first: nn.Module
    second: nn.Module
    if isinstance(layer, nn.Linear):
        first = nn.Linear(layer.in_features, rank, bias=False, **options)
        second = nn.Linear(rank, layer.out_features, bias=layer.bias is not None, **options)
    else:
        assert isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d)
        kind = type(layer)
        first = kind(
            layer.in_channels,
            rank,
            layer.kernel_size,  # type: ignore[arg-type]
            stride=layer.stride,  # type: ignore[arg-type]
            padding=layer.padding,  # type: ignore[arg-type]
            dilation=layer.dilation,  # type: ignore[arg-type]
            bias=False,
            padding_mode=layer.padding_mode,
            **options,
        )
        second = kind(rank, layer.out_channels, 1, bias=layer.bias is not None, **options)
    with torch.no_grad():
        for thin, factor in ((first, pair.right), (second, pair.left)):
            into = thin.get_parameter("weight")
            into.copy_(factor.reshape(into.shape)).requires_grad_(weight.requires_grad)
        if isinstance(layer.bias, nn.Parameter):
            second.bias = nn.Parameter(layer.bias.detach().clone(), requires_grad=layer.bias.requires_grad)
    return nn.Sequential(first, second).train(layer.training)
