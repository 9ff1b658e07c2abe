"""The modulation `block_scale`: a factor for each block of the target."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from mapping_core import Modulation
from mapping_core.contexts import ModulationContext
from mapping_plugin_modulation._numbers import FollowingNumbers

_PURPOSE = 0x626C6F63  # tells this modulation's draws from other kinds'


class BlockScaleModulation(Modulation):
    """``theta = (base + delta) * (1 + g_b)``, b the block of the parameter.

    There are few blocks, so a factor is a signed mean of many of the latent's numbers
    (`FollowingNumbers`), while the mapper gives `delta` its detail.
    """

    def __init__(self, context: ModulationContext, *, depth: int | None, strength: float) -> None:
        super().__init__()
        self.strength = strength
        blocks = {spec.name: ".".join(spec.module.split(".")[:depth]) for spec in context.parameters}
        places = {block: place for place, block in enumerate(dict.fromkeys(blocks.values()))}
        self._places = {name: places[block] for name, block in blocks.items()}
        self.numbers = FollowingNumbers(context, len(places), purpose=_PURPOSE)

    def forward(self, delta: dict[str, Tensor], z: Tensor, base: Mapping[str, Tensor]) -> dict[str, Tensor]:
        gains = self.strength * self.numbers(z)
        changed = {}
        for name, piece in delta.items():
            gain = gains[..., self._places[name]]
            gain = gain.reshape(gain.shape + (1,) * (piece.ndim - gain.ndim))
            changed[name] = piece + gain * (base[name] + piece)
        return changed
