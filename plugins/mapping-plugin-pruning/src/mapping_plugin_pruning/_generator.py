"""The generator of `pruned`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mapping_core import ConfigError, Generator, NonFiniteError, ParameterSpec
from mapping_core.contexts import GeneratorContext
from mapping_core.nesting import nested
from mapping_core.target.tensors import TensorTree
from mapping_plugin_pruning._bits import byte_table, packed, unpacked
from mapping_plugin_pruning._choice import blocks, channels, single_weights
from mapping_plugin_pruning._criteria import Criterion, channel_norm, magnitude, n_of_m

if TYPE_CHECKING:
    from mapping_plugin_pruning import Pruned


class PrunedGenerator(Generator):
    """The weights of an inner strategy where the masks let them pass, and 0 elsewhere."""

    def __init__(self, context: GeneratorContext, config: Pruned) -> None:
        super().__init__()
        if any(type(each) is type(config) for each in nested(config).values()):
            raise ConfigError("strategy 'pruned' inside 'pruned': one of them is enough, leave the other out")
        specs, self._criterion = _criterion(context, config)
        if not specs:
            raise ConfigError(
                f"strategy 'pruned': nothing can be pruned by method {config.method!r} here: use another or name layers"
            )
        self.inner = context.inner(config.strategy, layout=context.layout, latent_dim=context.latent_dim)
        self._shapes = {spec.name: spec.shape for spec in specs}
        ones = {name: packed(torch.ones(shape, dtype=torch.bool)) for name, shape in self._shapes.items()}
        #: Bits by parameter: what passes. Saved with the model.
        self.masks = TensorTree(ones, persistent=True)
        self.register_buffer("_table", byte_table(), persistent=False)

    _table: Tensor

    @property
    def latent_sizes(self) -> dict[str, int]:
        return self.inner.latent_sizes

    def forward(self, latents: Mapping[str, Tensor], base: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return self._masked(self.inner(latents, base), None)

    def generate_some(
        self,
        latents: Mapping[str, Tensor],
        base: Mapping[str, Tensor],
        names: frozenset[str],
        rows: tuple[int, int] | None = None,
    ) -> dict[str, Tensor]:
        return self._masked(self.inner.generate_some(latents, base, names, rows), rows)

    def _masked(self, weights: Mapping[str, Tensor], rows: tuple[int, int] | None) -> dict[str, Tensor]:
        bits = self.masks.as_dict()
        return {
            name: torch.where(self._mask(name, bits[name], rows), weight, 0.0) if name in bits else weight
            for name, weight in weights.items()
        }

    def _mask(self, name: str, bits: Tensor, rows: tuple[int, int] | None) -> Tensor:
        shape = self._shapes[name]
        first, last = (0, shape[0]) if rows is None else rows
        below = math.prod(shape[1:])
        return unpacked(bits, self._table, first * below, last * below).view(last - first, *shape[1:])

    def mask(self, name: str) -> Tensor:
        """The mask of a parameter that may be pruned, bool, in its shape."""
        return self._mask(name, self.masks.as_dict()[name], None)

    @property
    def prunable(self) -> tuple[str, ...]:
        """The names of the parameters that may be pruned."""
        return tuple(self._shapes)

    @torch.no_grad()
    def prune(self, weights: Mapping[str, Tensor], keep: float) -> None:
        """Set the masks anew from the weights they let pass; what is pruned stays so.

        Raises `NonFiniteError`, and changes nothing, for weights that are not finite.
        """
        for name in self.prunable:
            if not torch.isfinite(weights[name]).all():
                raise NonFiniteError(f"{name!r} has weights that are not finite, and cannot be pruned by them")
        tiny = torch.finfo(torch.float32).tiny
        scored = {}
        for name in self.prunable:
            weight = weights[name].float()
            # A weight that happens to be 0 must not be taken for one that is pruned.
            scored[name] = torch.where(self.mask(name), weight.abs().clamp_min(tiny), 0.0)
        for name, mask in self._criterion(scored, keep).items():
            # In place: weights that are kept in evaluation follow its version.
            self.masks.as_dict()[name].copy_(packed(mask & self.mask(name)))

    def pack(self, latents: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
        return self.inner.pack(latents)

    def unpack(self, packed: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return self.inner.unpack(packed)

    def assignment(self) -> dict[str, tuple[str, ...]]:
        return self.inner.assignment()


def _criterion(context: GeneratorContext, config: Pruned) -> tuple[tuple[ParameterSpec, ...], Criterion]:
    together = config.scope == "global"
    if config.method == "channels":
        layers = channels(context.layout, config.layers)
        specs = tuple(spec for layer in layers for spec in (layer.weight, *layer.others))
        return specs, channel_norm(layers, together=together)
    if config.method == "n_m":
        specs = blocks(context.layout, config.layers, config.m)
        return specs, n_of_m(specs, config.m)
    specs = single_weights(context.layout, config.layers)
    return specs, magnitude(specs, together=together)
