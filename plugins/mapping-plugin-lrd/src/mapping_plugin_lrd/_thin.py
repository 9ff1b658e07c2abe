"""`export_thin`: a trained model as a plain module that keeps the factors."""

from __future__ import annotations

import torch
from torch import nn

from mapping_core import MappingModel, TargetError
from mapping_plugin_lrd._generator import LrdGenerator
from mapping_plugin_lrd._layers import Pair, with_thin_layers


def export_thin(model: MappingModel) -> nn.Module:
    """Return `model.export()` with two thin layers in the place of each that was decomposed.

    `model.export()` itself gives one layer. Only for ``base="zero"``: theta_0 + U V has full rank.

    Raises `TargetError` for another base, another strategy, and a layer that cannot be two.

    >>> from mapping_plugin_lrd import Lrd
    >>> target = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    >>> model = MappingModel(target, latent_dim=50, strategy=Lrd(rank=4, layers=("0",)), base="zero")
    >>> thin = export_thin(model)
    >>> print(thin[0])
    Sequential(
      (0): Linear(in_features=64, out_features=4, bias=False)
      (1): Linear(in_features=4, out_features=32, bias=True)
    )
    """
    generator = model.generator
    if not isinstance(generator, LrdGenerator):
        raise TargetError(f"export_thin: the strategy is {model.strategy.name!r} and not 'lrd': use model.export()")
    if model.base != "zero":
        raise TargetError(
            f"export_thin: with base={model.base!r} a weight is theta_0 + U V, which two thin layers cannot be: use "
            "model.export(), or base='zero'"
        )
    paths: dict[str, str] = {}
    for name in generator.factors:
        path, _, leaf = name.rpartition(".")
        if leaf != "weight":
            raise TargetError(f"export_thin: {name!r} is not the weight of a layer: use model.export()")
        paths[name] = path
    with torch.no_grad():
        pairs = generator.pairs(model.latents)
    return with_thin_layers(model.export(), {paths[name]: Pair(*pair) for name, pair in pairs.items()})
