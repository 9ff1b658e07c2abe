"""Layer-wise strategy: every layer has a latent of its own.

The layer-wise training of "Mapping Networks" (arXiv 2602.19134).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import define

from mapping_core import GeneratorConfig, hookimpl

if TYPE_CHECKING:
    from mapping_core import Generator
    from mapping_core.contexts import GeneratorContext

__version__ = "0.1.0"
__all__ = ["Layerwise", "mapping_generators"]


@define(frozen=True, kw_only=True)
class Layerwise(GeneratorConfig):
    """One latent a layer; `latent_dim` is divided evenly, and no layer gets more numbers than it has weights.

    A layer is a module that owns parameters: a weight and its bias share a latent.
    """

    name = "layerwise"

    def build(self, context: GeneratorContext) -> Generator:
        from mapping_plugin_layerwise._generator import LayerwiseGenerator

        return LayerwiseGenerator(context)


@hookimpl
def mapping_generators() -> list[type[GeneratorConfig]]:
    return [Layerwise]
