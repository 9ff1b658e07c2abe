"""`shrink`: a network without the channels that are 0."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import torch
from attrs import define
from torch import Tensor, nn

from mapping_core import TargetError
from mapping_plugin_pruning._layers import follow, inputs_of, select_inputs, select_outputs, select_statistics

_WEIGHTED = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


@define
class Flow:
    """What is known of the channels between two layers: which carry something, and what the others are."""

    alive: Tensor  # bool [channels]
    constant: Tensor  # [channels], the value of those that are not alive


def shrink(module: nn.Module) -> nn.Module:
    """Return a smaller network that computes the same in evaluation mode, without channels whose weights are all 0.

    What a removed channel still gives, because of a bias or a norm, goes into the bias of the
    next layer. For `nn.Sequential`, also nested, of linear, convolution, BatchNorm, pooling,
    flattening, dropout and elementwise layers. The last layer keeps its outputs.

    Raises `TargetError` for any other graph or layer, and where padding keeps a constant from
    becoming a bias.

    >>> net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    >>> with torch.no_grad():
    ...     _ = net[0].weight[4:].zero_()
    >>> shrink(net)
    Sequential(
      (0): Linear(in_features=8, out_features=4, bias=True)
      (1): ReLU()
      (2): Linear(in_features=4, out_features=2, bias=True)
    )
    """
    small = copy.deepcopy(module)
    chain = list(_chain(small, ""))
    weighted = [index for index, (_, layer) in enumerate(chain) if isinstance(layer, _WEIGHTED)]
    if len({id(layer) for _, layer in chain if _has_state(layer)}) < sum(_has_state(layer) for _, layer in chain):
        raise TargetError("shrink: a layer stands at two places of the chain, and cannot be cut for both")
    flow: Flow | None = None  # before the first layer with weights nothing is known, nor needed
    with torch.no_grad():
        for index, (path, layer) in enumerate(chain):
            if isinstance(layer, _WEIGHTED):
                flow = _through_weights(path, layer, flow, last=index == weighted[-1])
            elif flow is not None:
                flow = _through(path, layer, flow)
    return small


def _chain(module: nn.Module, path: str) -> Iterator[tuple[str, nn.Module]]:
    if isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward:
        for name, child in module._modules.items():  # named_children() leaves repeated ones out
            assert child is not None
            yield from _chain(child, f"{path}.{name}" if path else name)
    else:
        yield path, module


def _has_state(layer: nn.Module) -> bool:
    return next(layer.parameters(), None) is not None


def _through_weights(path: str, layer: nn.Module, flow: Flow | None, *, last: bool) -> Flow:
    if getattr(layer, "groups", 1) != 1:
        raise TargetError(f"shrink: {path!r} is a convolution in groups")
    if flow is not None:
        flow = _spread(path, layer, flow)
        select_inputs(path, layer, flow.alive, flow.constant)
    weight = layer.get_parameter("weight")
    alive = weight.flatten(1).ne(0).any(dim=1)
    if last or not alive.any():
        alive = torch.ones_like(alive) if last else torch.arange(len(alive), device=alive.device) == 0
    bias = layer.bias if isinstance(layer.bias, Tensor) else weight.new_zeros(len(weight))
    constant = bias.detach().clone()
    select_outputs(layer, alive)
    return Flow(alive, constant)


def _spread(path: str, layer: nn.Module, flow: Flow) -> Flow:
    """The flow by the layer's inputs: flattening gives each channel as many as it had places."""
    inputs, channels = inputs_of(layer), len(flow.alive)
    if inputs % channels:
        raise TargetError(f"shrink: {path!r} has {inputs} inputs, which is no multiple of the {channels} before it")
    times = inputs // channels
    return Flow(flow.alive.repeat_interleave(times), flow.constant.repeat_interleave(times))


def _through(path: str, layer: nn.Module, flow: Flow) -> Flow:
    if isinstance(layer, _NORMS):
        if layer.running_mean is None or layer.running_var is None:
            raise TargetError(f"shrink: {path!r} has no running statistics: a channel is then not the same alone")
        constant = _normed(layer, flow.constant)
        select_statistics(layer, flow.alive)
        return Flow(flow.alive, constant)
    constant = follow(path, layer, flow.constant, flow.alive)
    return Flow(flow.alive, constant)


def _normed(layer: nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d, constant: Tensor) -> Tensor:
    assert layer.running_mean is not None
    assert layer.running_var is not None
    normed = (constant - layer.running_mean) / (layer.running_var + layer.eps).sqrt()
    return normed if not layer.affine else normed * layer.weight + layer.bias
