"""The plainest strategy: one latent through one mapper into all parameters.

`slvt` is this; it is also what a strategy that has an inner one uses where none is given.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from torch import Tensor

from mapping_core.interfaces.generator import Generator

if TYPE_CHECKING:
    from mapping_core.contexts import GeneratorContext

_LATENT = "z"


class OneLatent(Generator):
    """A single expansion over all mapped parameters of a layout; its latent is named ``z``."""

    def __init__(self, context: GeneratorContext) -> None:
        super().__init__()
        self.expansion = context.expansion(context.layout.mapped, context.latent_dim, stream=0)

    @property
    def latent_sizes(self) -> dict[str, int]:
        return {_LATENT: self.expansion.latent_size}

    def forward(self, latents: Mapping[str, Tensor], base: Mapping[str, Tensor]) -> dict[str, Tensor]:
        weights: dict[str, Tensor] = self.expansion(latents[_LATENT], base)
        return weights

    def generate_some(
        self,
        latents: Mapping[str, Tensor],
        base: Mapping[str, Tensor],
        names: frozenset[str],
        rows: tuple[int, int] | None = None,
    ) -> dict[str, Tensor]:
        return self.expansion.some(latents[_LATENT], base, names, rows)

    def assignment(self) -> dict[str, tuple[str, ...]]:
        return {_LATENT: self.expansion.names}
