"""The mapper: a fixed map from a latent to weights."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn


class Mapper(nn.Module, ABC):
    """A fixed map R^d -> R^n, the same for the same (kind, d, n, seed, stream) on any device.

    A mapper holds no trainable parameter; what it needs to remember stands in buffers that are
    not persistent, as few bytes as the kind allows. A linear mapper's rows have **unit gain**: a row's
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


class LinearMapper(Mapper):
    """A mapper ``G z`` that can write its rows straight into weights, and read gradients straight from theirs.

    The work is split in two: `prepare` makes of z a `prepared` tensor that is small beside
    the output, and the rows are made from that. `forward` and `rows` follow.
    """

    @property
    @abstractmethod
    def prepared_shape(self) -> tuple[int, ...]:
        """The shape of `prepared` for a latent [d]."""

    @abstractmethod
    def prepare(self, z: Tensor) -> Tensor:
        """What all rows are made from: linear and differentiable, [..., d] -> [..., *prepared_shape]."""

    def unprepare(self, grad: Tensor) -> Tensor:
        """The adjoint of `prepare`, [*prepared_shape] -> [d]; override it to spare autograd's own time."""
        with torch.enable_grad():
            z = grad.new_zeros(self.in_features).requires_grad_()
            (gradient,) = torch.autograd.grad(self.prepare(z), z, grad)
        return gradient

    @abstractmethod
    def rows_of(self, prepared: Tensor, start: int, stop: int) -> Tensor:
        """The outputs `start` to `stop`, [..., stop - start], in plain differentiable operations."""

    @abstractmethod
    def write(self, prepared: Tensor, start: int, base: Tensor, scale: float, out: Tensor) -> None:
        """Set `out` [k] to ``base + scale * rows_of(prepared, start, start + k)``.

        `prepared` is without leading dimensions; all are contiguous, of one dtype, and need
        no gradient.
        """

    @abstractmethod
    def gather(self, grad: Tensor, start: int, scale: float, into: Tensor) -> None:
        """Add ``scale`` times the adjoint of `rows_of` at `grad` [k] to `into`, of the shape of `prepared`."""

    def forward(self, z: Tensor) -> Tensor:
        return self.rows_of(self.prepare(z), 0, self.out_features)

    def rows(self, z: Tensor, start: int, stop: int) -> Tensor:
        return self.rows_of(self.prepare(z), start, stop)
