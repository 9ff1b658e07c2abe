"""The mapper: a fixed map from a latent to weights."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor, nn


class Mapper(nn.Module, ABC):
    """A fixed map R^d -> R^n, the same for the same (kind, d, n, seed, stream) on any device.

    A mapper holds no trainable parameter; what it needs to remember stands in buffers, as
    few bytes as the kind allows. A linear mapper's rows have **unit gain**: a row's
    Euclidean norm is 1 (exactly, or on average over rows), so that ``z`` with standard
    deviation 1 gives outputs with standard deviation 1 and one learning rate fits every
    mapper and every size. It maps 0 to 0, so a model starts as its base.
    """

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.in_features = in_features
        self.out_features = out_features

    @abstractmethod
    def forward(self, z: Tensor) -> Tensor:
        """Map latents to outputs.

        `z` has shape [..., d], float32 or float64; returns [..., n] of the same dtype.
        """

    def rows(self, z: Tensor, start: int, stop: int) -> Tensor:
        """The outputs `start` to `stop` alone, [..., stop - start]; lazy generation asks for few at a time.

        Override it where they can be had without computing the others.
        """
        output: Tensor = self(z)
        return output[..., start:stop]

    def extra_repr(self) -> str:
        return f"{self.in_features} -> {self.out_features}"
