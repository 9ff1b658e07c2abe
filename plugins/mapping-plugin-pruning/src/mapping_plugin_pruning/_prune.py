"""`prune`: set the masks of a model, and `kept`: what they let pass."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from mapping_core import ConfigError, MappingModel
from mapping_core.target.wrappers import unwrapped
from mapping_plugin_pruning._generator import PrunedGenerator


def prune(model: nn.Module, keep: float) -> None:
    """Prune a mapped model's weights as they are now, until the part `keep` of what may be pruned is left.

    What is pruned stays so: a larger `keep` than before changes nothing.

    Raises `ConfigError` when `keep` is not in (0, 1], or the model's strategy is not `pruned`.

    >>> from mapping_core.reference.models import CNN2
    >>> model = MappingModel(CNN2(), latent_dim=2048, strategy="pruned")
    >>> prune(model, 0.1)
    >>> kept(model)
    10862
    >>> sum(int(weight.count_nonzero()) for weight in model.export().parameters())
    10862
    """
    if not 0 < keep <= 1:
        raise ConfigError(f"must be in (0, 1], got {keep!r}", path="keep")
    generator = pruned_generator(model)
    generator.prune(_weights(model, generator), keep)


def kept(model: nn.Module) -> int:
    """How many weights the masks of a model let pass, with those that cannot be pruned."""
    generator = pruned_generator(model)
    weights = _weights(model, generator)
    free = sum(weight.numel() for name, weight in weights.items() if name not in generator.prunable)
    return free + sum(int(generator.mask(name).sum()) for name in generator.prunable)


def pruned_generator(model: nn.Module) -> PrunedGenerator:
    """The strategy of a model that prunes: its own, or one inside it."""
    model = unwrapped(model)
    if isinstance(model, MappingModel):
        for module in model.generator.modules():
            if isinstance(module, PrunedGenerator):
                return module
    used = f", it is {model.strategy.name!r}" if isinstance(model, MappingModel) else " of a MappingModel"
    raise ConfigError(f"pruning needs the strategy 'pruned'{used}: strategy=Pruned(strategy=...)")


def _weights(model: nn.Module, generator: PrunedGenerator) -> Mapping[str, Tensor]:
    """What a strategy generates where it stands, which may be the factors of weights."""
    seen: dict[str, Tensor] = {}

    def note(_module: nn.Module, _inputs: Any, output: dict[str, Tensor]) -> None:
        seen.update(output)

    mapped = unwrapped(model)
    assert isinstance(mapped, MappingModel)
    handle = generator.register_forward_hook(note)
    try:
        with torch.no_grad():
            mapped.generate_weights()
    finally:
        handle.remove()
    return seen
