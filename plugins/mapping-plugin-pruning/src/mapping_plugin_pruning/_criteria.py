"""New masks from weights: which weights are the least important."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor
from torch.nn.utils import prune

from mapping_core import ParameterSpec
from mapping_plugin_pruning._choice import Channels

#: New masks by parameter, from weights (float32, 0 where pruned) and the part to keep.
Criterion = Callable[[Mapping[str, Tensor], float], dict[str, Tensor]]


def magnitude(specs: Sequence[ParameterSpec], *, together: bool) -> Criterion:
    """The largest weights, of all tensors together or of each."""

    def masks(weights: Mapping[str, Tensor], keep: float) -> dict[str, Tensor]:
        if not together:
            return {spec.name: _largest(weights[spec.name], keep) for spec in specs}
        chosen = _largest(torch.cat([weights[spec.name].reshape(-1) for spec in specs]), keep)
        pieces = torch.split(chosen, [spec.numel for spec in specs])
        return {spec.name: piece.view(spec.shape) for spec, piece in zip(specs, pieces, strict=True)}

    return masks


def n_of_m(specs: Sequence[ParameterSpec], m: int) -> Criterion:
    """The n largest of every m weights in a row, n the part to keep of m, rounded up."""

    def masks(weights: Mapping[str, Tensor], keep: float) -> dict[str, Tensor]:
        n = math.ceil(keep * m - 1e-9)
        made = {}
        for spec in specs:
            blocks = weights[spec.name].reshape(-1, m).abs()
            largest = blocks.topk(n, dim=1).indices
            made[spec.name] = torch.zeros_like(blocks, dtype=torch.bool).scatter_(1, largest, True).view(spec.shape)
        return made

    return masks


def channel_norm(layers: Sequence[Channels], *, together: bool) -> Criterion:
    """The channels of the largest Euclidean norm, in units of the layer's own spread where all are ranked together."""

    def masks(weights: Mapping[str, Tensor], keep: float) -> dict[str, Tensor]:
        alive = _ranked_together(layers, weights, keep) if together else _in_each(layers, weights, keep)
        return {
            spec.name: one.view(-1, *[1] * (len(spec.shape) - 1)).expand(spec.shape)
            for layer, one in zip(layers, alive, strict=True)
            for spec in (layer.weight, *layer.others)
        }

    return masks


def _in_each(layers: Sequence[Channels], weights: Mapping[str, Tensor], keep: float) -> list[Tensor]:
    alive = []
    for layer in layers:
        matrix = weights[layer.weight.name].flatten(1)
        mask = torch.ones_like(matrix)
        if drop := len(matrix) - _kept(len(matrix), keep):
            mask = prune.LnStructured(amount=drop, n=2, dim=0).compute_mask(matrix, mask)  # type: ignore[no-untyped-call]
        alive.append(mask[:, 0].bool())
    return alive


def _ranked_together(layers: Sequence[Channels], weights: Mapping[str, Tensor], keep: float) -> list[Tensor]:
    scores = []
    for layer in layers:
        matrix = weights[layer.weight.name].flatten(1)
        norms = matrix.norm(dim=1) / (layer.weight.scale * math.sqrt(matrix.shape[1]))
        norms[norms.argmax()] = math.inf  # no layer may lose all its channels
        scores.append(norms)
    count = sum(len(each) for each in scores)
    number = max(_kept(count, keep), len(layers))
    alive = torch.zeros(count, dtype=torch.bool, device=scores[0].device)
    alive[torch.cat(scores).topk(number).indices] = True
    return list(torch.split(alive, [len(each) for each in scores]))


def _largest(tensor: Tensor, keep: float) -> Tensor:
    ones = torch.ones_like(tensor)
    drop = tensor.numel() - _kept(tensor.numel(), keep)
    if not drop:
        return ones.bool()
    mask: Tensor = prune.L1Unstructured(amount=drop).compute_mask(tensor, ones)  # type: ignore[no-untyped-call]
    return mask.bool()


def _kept(count: int, keep: float) -> int:
    return max(1, round(keep * count))
