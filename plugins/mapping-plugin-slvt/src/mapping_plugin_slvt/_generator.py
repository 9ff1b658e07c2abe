"""The generator of `slvt`."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from mapping_core import Generator
from mapping_core.contexts import GeneratorContext

_LATENT = "z"


class SlvtGenerator(Generator):
    """A single expansion over all mapped parameters."""

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
