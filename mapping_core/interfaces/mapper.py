"""The mapper: a fixed map from a latent to weights."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Self

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


class LinearMap(ABC):
    """``G z`` with all it needs at hand: writes its rows straight into weights, and reads gradients from theirs.

    The work is split in two: `prepare` makes of z a `prepared` tensor that is small beside
    the output, and the rows are made from that.
    """

    @property
    @abstractmethod
    def prepared_shape(self) -> tuple[int, ...]:
        """The shape of `prepared` for a latent [d]."""

    @abstractmethod
    def prepare(self, z: Tensor) -> Tensor:
        """What all rows are made from: linear and differentiable, [..., d] -> [..., *prepared_shape]."""

    @classmethod
    def prepare_all(cls, maps: Sequence[Self], latents: Sequence[Tensor]) -> list[Tensor]:
        """`prepare` of several, each for its latent [d]; override it where together they cost less."""
        return [each.prepare(z) for each, z in zip(maps, latents, strict=True)]

    @classmethod
    @abstractmethod
    def unprepare_all(cls, maps: Sequence[Self], grads: Sequence[Tensor]) -> list[Tensor]:
        """The adjoints of `prepare`, each [*prepared_shape] -> [d]."""

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
    def gather(self, grads: Sequence[Tensor], scales: Sequence[float], start: int, into: Tensor) -> None:
        """Add the adjoint of `rows_of` at ``scale * grad`` to `into`, of the shape of `prepared`.

        The gradients, of any shape, are of consecutive outputs from `start` on.
        """


class LinearMapper(Mapper):
    """A mapper ``G z`` that is a `LinearMap` once its tables are unpacked: `forward` and `rows` follow."""

    @abstractmethod
    def unpacked(self, dtype: torch.dtype) -> LinearMap:
        """What works on latents of `dtype`; asked for once in every pass, and not kept beyond it."""

    @classmethod
    def all_unpacked(cls, mappers: Sequence[Self], dtype: torch.dtype) -> Sequence[LinearMap]:
        """`unpacked` of several; override it where together they cost less."""
        return [mapper.unpacked(dtype) for mapper in mappers]

    def forward(self, z: Tensor) -> Tensor:
        return self.rows(z, 0, self.out_features)

    def rows(self, z: Tensor, start: int, stop: int) -> Tensor:
        linear = self.unpacked(z.dtype)
        return linear.rows_of(linear.prepare(z), start, stop)
