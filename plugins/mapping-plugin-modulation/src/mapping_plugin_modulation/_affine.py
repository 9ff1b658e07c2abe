"""The modulation `affine`: a factor and a shift for each output channel."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from mapping_core import Modulation
from mapping_core.contexts import ModulationContext
from mapping_plugin_modulation._numbers import FollowingNumbers
from mapping_plugin_modulation._rows import RowLine

_PURPOSE = 0x61666669  # tells this modulation's draws from other kinds'


class AffineModulation(Modulation):
    """``theta = (base + delta) * (1 + g_c) + s * h_c``, c the row of the weight and s its layer's scale.

    Feature-wise affine modulation (FiLM: Perez et al. 2018), of weights in the place of
    features, and by a latent in the place of a condition. Factors and shifts are dealt the
    latent's numbers in turn (`FollowingNumbers`), first all factors.
    """

    def __init__(self, context: ModulationContext, *, strength: float) -> None:
        super().__init__()
        self.strength = strength
        self.lines = RowLine.of(context.parameters)
        self.numbers = FollowingNumbers(context, 2 * self.lines.count, purpose=_PURPOSE)
        self._scales = {spec.name: spec.scale for spec in context.parameters}

    def forward(self, delta: dict[str, Tensor], z: Tensor, base: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return self._changed(delta, z, base, None)

    def of_rows(
        self, delta: dict[str, Tensor], z: Tensor, base: Mapping[str, Tensor], rows: tuple[int, int]
    ) -> dict[str, Tensor]:
        return self._changed(delta, z, base, rows)

    def _changed(
        self, delta: dict[str, Tensor], z: Tensor, base: Mapping[str, Tensor], rows: tuple[int, int] | None
    ) -> dict[str, Tensor]:
        gains, shifts = (self.strength * self.numbers(z)).split(self.lines.count, dim=-1)
        return {
            name: piece
            + self.lines.cut(gains, name, rows) * (base[name] + piece)
            + self._scales[name] * self.lines.cut(shifts, name, rows)
            for name, piece in delta.items()
        }
