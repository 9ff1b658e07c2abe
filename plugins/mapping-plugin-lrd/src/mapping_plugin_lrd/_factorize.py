"""`factorize`: a module with thin layers, to train directly."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

import torch
from torch import Tensor, nn

from mapping_core import ConfigError, Layout, ParameterSpec
from mapping_core.random import RandomStream
from mapping_plugin_lrd._choice import chosen_ranks
from mapping_plugin_lrd._generator import Factors
from mapping_plugin_lrd._layers import Pair, why_not, with_thin_layers

_LEFT, _RIGHT = 0x6C72646C, 0x6C726472  # the purposes of the draws of the two factors


def factorize(
    module: nn.Module,
    *,
    rank: int | Mapping[str, int],
    layers: str | Iterable[str] | None = None,
    start: Literal["draw", "svd"] = "draw",
    seed: int = 0,
) -> nn.Module:
    """Return a copy of `module` whose chosen layers are two thin ones, to be trained directly.

    `rank` and `layers` choose as in `Lrd`; a Linear [out, in] becomes Linear(in, rank) and
    Linear(rank, out), a convolution one with `rank` channels and a pointwise one. With
    ``start="draw"`` the factors are drawn from `seed`, such that the product has the layer's
    initial standard deviation; with ``"svd"`` they are the best approximation of the present weights.

    Raises `TargetError` for a chosen layer that cannot be two, and `ConfigError` for a rank or
    pattern that fits nothing.

    >>> from mapping_core.reference.models import CNN2
    >>> thin = factorize(CNN2(), rank=32, layers="7")
    >>> sum(parameter.numel() for parameter in thin.parameters())
    35914
    """
    if start not in ("draw", "svd"):
        raise ConfigError(f"{start!r} is not one of draw, svd", path="start")
    patterns = None if layers is None else (layers,) if isinstance(layers, str) else tuple(layers)
    specs = [spec for spec in Layout.of(module).parameters if spec.name.rpartition(".")[2] == "weight"]
    if patterns is None and not isinstance(rank, Mapping):
        specs = [spec for spec in specs if why_not(module.get_submodule(spec.module)) is None]
    ranks = chosen_ranks(specs, rank, patterns)
    pairs: dict[str, Pair] = {}
    for stream, spec in enumerate(spec for spec in specs if spec.name in ranks):
        weight = module.get_parameter(spec.name).detach()
        made = _drawn(spec, ranks[spec.name], seed, stream) if start == "draw" else _best(weight, ranks[spec.name])
        pairs[spec.module] = Pair(*made)
    return with_thin_layers(module, pairs)


def _drawn(spec: ParameterSpec, rank: int, seed: int, stream: int) -> tuple[Tensor, Tensor]:
    factors = Factors.of(spec, rank)
    left, right = (
        RandomStream(seed, stream=stream, purpose=purpose).normal(factor.numel).view(factor.shape) * factor.scale
        for factor, purpose in ((factors.left, _LEFT), (factors.right, _RIGHT))
    )
    return left, right


def _best(weight: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """The nearest product of this rank, its singular values shared evenly between the factors."""
    left, values, right = torch.linalg.svd(weight.reshape(len(weight), -1).double(), full_matrices=False)
    roots = values[:rank].sqrt()
    return left[:, :rank] * roots, roots[:, None] * right[:rank]
