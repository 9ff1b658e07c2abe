"""Cutting layers, and what a constant becomes on its way through others."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from mapping_core import TargetError

#: Elementwise layers, and those that leave a constant what it is.
_ELEMENTWISE = (
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish, nn.Softplus),
    *(nn.Tanh, nn.Sigmoid, nn.Hardtanh, nn.Hardsigmoid, nn.Hardswish, nn.Identity),
)
_SAME = (
    *(nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d),
    *(nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d),
    *(nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout),
)
_AVERAGES = (nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d)


def follow(path: str, layer: nn.Module, constant: Tensor, alive: Tensor) -> Tensor:
    """What the constants of channels become in a layer without weights of its own."""
    kind = type(layer)
    if kind in _ELEMENTWISE:
        made: Tensor = copy.deepcopy(layer)(constant.clone())  # it may work in place
        return made
    if kind in _SAME or (isinstance(layer, nn.Flatten) and layer.start_dim == 1 and layer.end_dim == -1):
        return constant
    if isinstance(layer, _AVERAGES):
        padded = layer.padding not in (0, (0,), (0, 0), (0, 0, 0)) and layer.count_include_pad
        if not padded and getattr(layer, "divisor_override", None) is None:
            return constant
        _refuse_constants(path, constant, alive, "averages over its padding")
        return constant
    raise TargetError(
        f"shrink: {path or 'the module'!r} is of type {kind.__name__}, and only a chain of linear, convolution, "
        "BatchNorm, pooling, flattening, dropout and elementwise layers can be made smaller"
    )


def inputs_of(layer: nn.Module) -> int:
    """How many channels or features a layer takes."""
    return layer.get_parameter("weight").shape[1]


def select_inputs(path: str, layer: nn.Module, alive: Tensor, constant: Tensor) -> None:
    """Leave only the inputs that are alive; what the others are goes into the bias."""
    weight = layer.get_parameter("weight")
    given = torch.where(alive, 0.0, constant)
    if given.any():
        if getattr(layer, "padding_mode", "") == "zeros" and _is_padded(layer):
            _refuse_constants(path, constant, alive, "pads with zeros")
        shift = weight.flatten(2).sum(dim=2) @ given if weight.ndim > 2 else weight @ given
        bias = shift + layer.bias if isinstance(layer.bias, Tensor) else shift
        layer.bias = nn.Parameter(bias, requires_grad=weight.requires_grad)
    _put(layer, "weight", weight[:, alive])
    if isinstance(layer, nn.Linear):
        layer.in_features = int(alive.sum())
    else:
        layer.in_channels = int(alive.sum())  # type: ignore[assignment]


def select_outputs(layer: nn.Module, alive: Tensor) -> None:
    """Leave only the outputs that are alive."""
    for name in ("weight", "bias"):
        if isinstance(tensor := getattr(layer, name), Tensor):
            _put(layer, name, tensor[alive])
    if isinstance(layer, nn.Linear):
        layer.out_features = int(alive.sum())
    else:
        layer.out_channels = int(alive.sum())  # type: ignore[assignment]


def select_statistics(layer: nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d, alive: Tensor) -> None:
    """Leave only the channels of a norm that are alive."""
    for name in ("weight", "bias"):
        if isinstance(tensor := getattr(layer, name), Tensor):
            _put(layer, name, tensor[alive])
    for name in ("running_mean", "running_var"):
        setattr(layer, name, layer.get_buffer(name)[alive].clone())
    layer.num_features = int(alive.sum())


def _put(layer: nn.Module, name: str, tensor: Tensor) -> None:
    given = layer.get_parameter(name).requires_grad
    setattr(layer, name, nn.Parameter(tensor.detach().clone(), requires_grad=given))


def _is_padded(layer: nn.Module) -> bool:
    padding = layer.padding
    return padding == "same" or (isinstance(padding, tuple) and any(padding))


def _refuse_constants(path: str, constant: Tensor, alive: Tensor, why: str) -> None:
    if torch.where(alive, 0.0, constant).any():
        raise TargetError(
            f"shrink: {path!r} {why}, and gets channels without weights that are not 0 all the same (a bias, or a norm "
            "that is not pruned with them), so they cannot become a bias: prune with method='channels'"
        )
