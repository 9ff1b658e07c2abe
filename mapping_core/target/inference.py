"""Weights for inference: generated once, until something they depend on changes."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


class WeightCache:
    """Remembers the weights generated for one value of the latent.

    Whether the latent changed is decided by comparing its values with a copy: version
    counters miss writes through ``.data``. A few thousand numbers are compared in
    microseconds. The owner calls `clear` when anything else changes (the device, the mode).
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget the weights."""
        self._latent: Tensor | None = None
        self._versions: tuple[int, ...] = ()
        self._weights: dict[str, Tensor] = {}

    def get(
        self, latent: Tensor, versions: tuple[int, ...], generate: Callable[[], dict[str, Tensor]]
    ) -> dict[str, Tensor]:
        """The weights for `latent` [d], from `generate` when they are not at hand.

        `versions` are the version counters of whatever else they depend on.
        """
        known = self._latent
        # A NaN differs from itself, so a latent with one is never served from memory.
        if known is None or versions != self._versions or not torch.equal(known, latent):
            # Ordinary tensors, whatever mode the caller is in: those made under inference_mode
            # could not be used outside it.
            with torch.inference_mode(False), torch.no_grad():
                self._weights = generate()
                self._latent = latent.detach().clone()
                self._versions = versions
        return self._weights
