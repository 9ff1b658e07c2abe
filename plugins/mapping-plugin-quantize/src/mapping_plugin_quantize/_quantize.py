"""`quantize`: lay the grid of a model by hand, and what the callback needs of it."""

from __future__ import annotations

import torch
from torch import nn

from mapping_core import ConfigError, MappingModel
from mapping_core.target.wrappers import unwrapped
from mapping_plugin_quantize import MOST_BITS
from mapping_plugin_quantize._generator import QuantizedGenerator


def quantize(model: nn.Module, bits: int | None = None) -> None:
    """Quantise the latents of a trained model of strategy `quantized`, with the steps of the least squared error.

    The latents themselves are not rounded: it may be done again, with other bits. `bits` stands for all
    groups in the place of the strategy's.

    Raises `ConfigError` when `bits` is not from 1 to 8, or the model's strategy is not `quantized`.

    >>> model = MappingModel(nn.Linear(8, 4), latent_dim=17, strategy="quantized")
    >>> _ = nn.init.normal_(model.latent)
    >>> before = model.generate_weights()["weight"]
    >>> quantize(model, bits=8)
    >>> fine = (model.generate_weights()["weight"] - before).norm()
    >>> quantize(model, bits=2)
    >>> bool(0 < fine < (model.generate_weights()["weight"] - before).norm())
    True
    """
    if bits is not None and (type(bits) is not int or not 1 <= bits <= MOST_BITS):
        raise ConfigError(f"must be an integer from 1 to {MOST_BITS}, got {bits!r}", path="bits")
    mapped, generator = quantized_model(model)
    own = generator.bits
    with torch.no_grad():  # which the views of the latent are to be made in, too
        generator.begin(mapped.latents, own if bits is None else (bits,) * len(own), fitted=True)


def quantized_model(model: nn.Module) -> tuple[MappingModel, QuantizedGenerator]:
    """A model, without what wraps it, and its strategy that quantises: its own, or one inside it."""
    model = unwrapped(model)
    if isinstance(model, MappingModel):
        for module in model.generator.modules():
            if isinstance(module, QuantizedGenerator):
                return model, module
    used = f", it is {model.strategy.name!r}" if isinstance(model, MappingModel) else " of a MappingModel"
    raise ConfigError(f"quantising needs the strategy 'quantized'{used}: strategy=Quantized(strategy=...)")
