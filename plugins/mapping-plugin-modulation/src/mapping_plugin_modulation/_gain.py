"""The modulation `gain`: a factor for each output channel."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from mapping_core import Modulation
from mapping_core.contexts import ModulationContext
from mapping_plugin_modulation._numbers import FollowingNumbers
from mapping_plugin_modulation._rows import RowLine

_PURPOSE = 0x6761696E  # tells this modulation's draws from other kinds'


class GainModulation(Modulation):
    """``theta = (base + delta) * (1 + g_c)``, c the row of the weight: its output channel in linear and convolution layers.

    In a transposed convolution the first dimension holds input channels, and in an embedding
    the tokens. Biases and the gains of norms have a factor for each of their numbers. All
    rows of the latent's parameters, in order, take the latent's numbers in turn, with seeded
    signs (`FollowingNumbers`).
    """  # noqa: E501

    def __init__(self, context: ModulationContext, *, groups: int | None, strength: float) -> None:
        super().__init__()
        self.strength = strength
        self.lines = RowLine.of(context.parameters)
        self.numbers = FollowingNumbers(context, self.lines.count, purpose=_PURPOSE, groups=groups)

    def forward(self, delta: dict[str, Tensor], z: Tensor, base: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return self._changed(delta, z, base, None)

    def of_rows(
        self, delta: dict[str, Tensor], z: Tensor, base: Mapping[str, Tensor], rows: tuple[int, int]
    ) -> dict[str, Tensor]:
        return self._changed(delta, z, base, rows)

    def _changed(
        self, delta: dict[str, Tensor], z: Tensor, base: Mapping[str, Tensor], rows: tuple[int, int] | None
    ) -> dict[str, Tensor]:
        gains = self.strength * self.numbers(z)
        return {name: piece + self.lines.cut(gains, name, rows) * (base[name] + piece) for name, piece in delta.items()}
