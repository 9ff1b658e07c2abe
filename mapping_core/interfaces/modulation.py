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
        same names and shapes. Lazy generation passes some of the parameters only, or some of
        their rows, in `delta` and `base` alike. theta = base + result. At ``z = 0`` it must be `delta`
        unchanged, so that a pretrained network starts as it is.
        """
