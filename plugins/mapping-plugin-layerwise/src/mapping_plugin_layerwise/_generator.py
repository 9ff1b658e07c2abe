"""The generator of `layerwise`."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from mapping_core import Expansion, Generator
from mapping_core.contexts import GeneratorContext
from mapping_plugin_layerwise._budget import divide_evenly


class LayerwiseGenerator(Generator):
    """One expansion a layer; latents are named after the module that owns the parameters."""

    def __init__(self, context: GeneratorContext) -> None:
        super().__init__()
        layers = context.layout.layers()
        shares = divide_evenly(context.latent_dim, [sum(spec.numel for spec in specs) for specs in layers.values()])
        self._names = tuple(layers)
        # A list and not a ModuleDict, whose keys may not hold the dots of module paths.
        self.expansions = nn.ModuleList(
            context.expansion(specs, share, stream=index)
            for index, (specs, share) in enumerate(zip(layers.values(), shares, strict=True))
        )

    def _pairs(self) -> list[tuple[str, Expansion]]:
        return list(zip(self._names, self.expansions, strict=True))  # type: ignore[arg-type]

    @property
    def latent_sizes(self) -> dict[str, int]:
        return {name: expansion.latent_size for name, expansion in self._pairs()}

    def forward(self, latents: Mapping[str, Tensor], base: Mapping[str, Tensor]) -> dict[str, Tensor]:
        weights: dict[str, Tensor] = {}
        for name, expansion in self._pairs():
            weights.update(expansion(latents[name], base))
        return weights

    def generate_some(
        self,
        latents: Mapping[str, Tensor],
        base: Mapping[str, Tensor],
        names: frozenset[str],
        rows: tuple[int, int] | None = None,
    ) -> dict[str, Tensor]:
        weights: dict[str, Tensor] = {}
        for name, expansion in self._pairs():
            if not names.isdisjoint(expansion.names):
                weights.update(expansion.some(latents[name], base, names, rows))
        return weights

    def assignment(self) -> dict[str, tuple[str, ...]]:
        return {name: expansion.names for name, expansion in self._pairs()}
