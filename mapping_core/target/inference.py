"""Weights for inference: generated once, until something they depend on changes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from attrs import define
from torch import Tensor


@define(frozen=True, eq=False)
class _Kept:
    """Weights, and the values of what they were generated from."""

    latent: Tensor
    versions: tuple[int, ...]
    weights: dict[str, Tensor]


class WeightCache:
    """Remembers the weights generated for one value of the latent.

    Whether the latent changed is decided by comparing its values with a copy: version
    counters miss writes through ``.data``. A few thousand numbers are compared in
    microseconds. The owner calls `clear` when anything else changes (the device, the mode).
    Threads that ask at once wait for the one that generates. Copies and pickles start empty.
    """

    def __init__(self) -> None:
        self._kept: _Kept | None = None
        self._lock = threading.Lock()

    def clear(self) -> None:
        """Forget the weights."""
        self._kept = None

    def get(
        self, latent: Tensor, versions: tuple[int, ...], generate: Callable[[], dict[str, Tensor]]
    ) -> dict[str, Tensor]:
        """The weights for `latent` [d], from `generate` when they are not at hand.

        `versions` are the version counters of whatever else they depend on.
        """
        with self._lock:
            kept = self._kept
            # A NaN differs from itself, so a latent with one is never served from memory.
            if kept is None or versions != kept.versions or not torch.equal(kept.latent, latent):
                # Ordinary tensors, whatever mode the caller is in: those made under inference_mode
                # could not be used outside it.
                with torch.inference_mode(False), torch.no_grad():
                    kept = _Kept(latent.detach().clone(), versions, generate())
                self._kept = kept
            return kept.weights

    def __getstate__(self) -> dict[str, Any]:
        return {}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__()  # type: ignore[misc]


def is_transformed() -> bool:
    """Whether a transform of `torch.func` (vmap, grad, jvp ...) is at work."""
    return torch._C._functorch.peek_interpreter_stack() is not None
