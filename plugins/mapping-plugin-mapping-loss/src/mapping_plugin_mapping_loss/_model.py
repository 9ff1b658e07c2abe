"""Finding the mapped model in what a loss is built for."""

from __future__ import annotations

from torch import nn

from mapping_core import MappingModel
from mapping_core.errors import ConfigError
from mapping_core.target.wrappers import unwrapped


def require_latents(model: nn.Module, loss: str) -> MappingModel:
    """The mapped model, whatever wraps it; raises `ConfigError` for a model without latents."""
    plain = unwrapped(model)
    if isinstance(plain, MappingModel):
        return plain
    raise ConfigError(
        f"loss {loss!r} evaluates a model under other latents, and {type(plain).__name__} has none: wrap it in a "
        "MappingModel, or use a task loss",
        path="loss",
    )
