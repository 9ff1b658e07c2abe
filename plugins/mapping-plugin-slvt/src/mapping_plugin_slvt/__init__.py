"""SLVT, the single latent vector: one latent feeds every weight of the target.

The baseline strategy of "Mapping Networks" (arXiv 2602.19134).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import define

from mapping_core import GeneratorConfig, hookimpl

if TYPE_CHECKING:
    from mapping_core import Generator
    from mapping_core.contexts import GeneratorContext

__version__ = "0.1.0"
__all__ = ["Slvt", "mapping_generators"]


@define(frozen=True, kw_only=True)
class Slvt(GeneratorConfig):
    """One latent of `latent_dim` numbers through one mapper into all weights."""

    name = "slvt"

    def build(self, context: GeneratorContext) -> Generator:
        from mapping_core.one_latent import OneLatent

        return OneLatent(context)


@hookimpl
def mapping_generators() -> list[type[GeneratorConfig]]:
    return [Slvt]
