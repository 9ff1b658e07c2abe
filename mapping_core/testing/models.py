"""Mapped models that checks of several kinds build in their world."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mapping_core.model import MappingModel
from mapping_core.testing.worlds import ModelWorld


def model_of(world: ModelWorld, **options: Any) -> MappingModel:
    """A model mapped as the world says; `options` replace what it says."""
    given = {"strategy": world.strategy, "mapper": world.mapper, "modulation": world.modulation, "seed": world.seed}
    return MappingModel(world.target(), world.latent_dim, **{**given, **options})


def moved(model: MappingModel, *, by: float = 0.3) -> MappingModel:
    """Put the latent somewhere, the same place each time."""
    with torch.no_grad():
        step = torch.randn(model.latent.shape, generator=torch.Generator().manual_seed(1))
        model.latent.add_(by * step.to(model.latent.dtype))
    return model


def copies_of(model: MappingModel, count: int) -> dict[str, Tensor]:
    """Latents [count, size] by name: the model's own, each with another change."""
    noise = torch.Generator().manual_seed(2)
    return {
        name: z.detach() + 0.1 * torch.randn(count, *z.shape, generator=noise).to(z.dtype)
        for name, z in model.latents.items()
    }


def difference(one: dict[str, Tensor], other: dict[str, Tensor]) -> str:
    """The first name under which two sets of weights differ beyond rounding; empty if none does."""
    for name, weight in one.items():
        if weight.shape != other[name].shape or not torch.allclose(weight, other[name], rtol=1e-4, atol=1e-5):
            return name
    return ""
