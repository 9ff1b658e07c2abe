"""The modulation: how a latent modulates what its mapper gives."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

from torch import Tensor, nn


class Modulation(nn.Module, ABC):
    """A change to generated weights that follows the same latent; it trains nothing of its own."""

    @abstractmethod
    def forward(self, delta: dict[str, Tensor], z: Tensor, base: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the modulated change of each parameter.

        `delta` holds what the mapper gives for the parameters of this latent, scaled, by
        name and in the parameter's shape (with `z`'s leading dimensions in front); `z` is
        the latent, [..., d]; `base` holds the base weights by name. The result has the
        same names and shapes. Lazy generation passes some of the parameters only, in `delta` and
        `base` alike. theta = base + result. At ``z = 0`` it must be `delta` unchanged, so that a
        pretrained network starts as it is.
        """

    def of_rows(
        self, delta: dict[str, Tensor], z: Tensor, base: Mapping[str, Tensor], rows: tuple[int, int]
    ) -> dict[str, Tensor]:
        """The same for the rows (first, last) alone, first <= row < last, of each parameter in `delta` and `base`.

        Lazy generation runs large layers a few rows at a time. Override it where what happens to a
        weight depends on the row it stands in.
        """
        changed: dict[str, Tensor] = self(delta, z, base)
        return changed
