"""What a model was trained under before its base moved: a list of (seed, latent)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from attrs import define
from torch import Tensor, nn

_SEEDS, _LATENTS = "seeds", "latents"


@define(frozen=True, eq=False)
class Folding:
    """A latent [d] that became a part of the base, and the seed of the mapping it was trained under."""

    seed: int
    latent: Tensor


class Foldings(nn.Module):
    """The foldings of a model, and the seed of its present mapping; empty, and not in a file, while there are none.

    In `state_dict()` as ``seeds`` [k + 1] (int64, the present one last) and ``latents`` [k, d].
    """

    @property
    def entries(self) -> list[Folding]:
        """The foldings, the first one first."""
        buffers = dict(self.named_buffers())
        if not buffers:
            return []
        seeds = map(int, buffers[_SEEDS][:-1])
        return [Folding(seed, latent) for seed, latent in zip(seeds, buffers[_LATENTS], strict=True)]

    def put(self, entries: Sequence[Folding], present: int) -> None:
        """Set all foldings, and the seed of the mapping after the last."""
        for name in [*self._buffers]:
            delattr(self, name)
        if entries:
            device = entries[0].latent.device
            self.register_buffer(_SEEDS, torch.tensor([*(each.seed for each in entries), present], device=device))
            self.register_buffer(_LATENTS, torch.stack([each.latent for each in entries]))


def foldings_in(state: Mapping[str, Any], prefix: str, latent: Tensor) -> tuple[list[Folding], int] | None:
    """The foldings in a state dictionary and the present seed, for a model with this latent; None without any.

    Raises `RuntimeError`, as `load_state_dict` does, for a list that cannot be one of this model.
    """
    seeds, latents = state.get(prefix + _SEEDS), state.get(prefix + _LATENTS)
    if seeds is None and latents is None:
        return None
    if seeds is None or latents is None or seeds.ndim != 1 or latents.shape != (len(seeds) - 1, *latent.shape):
        raise RuntimeError(f"{prefix}seeds and {prefix}latents do not fit each other, or this model")
    *before, present = map(int, seeds)
    if min(before, default=-1) < 0 or present < 0:
        raise RuntimeError(f"{prefix}seeds are not all seeds")
    return [Folding(seed, each.to(latent)) for seed, each in zip(before, latents, strict=True)], present
