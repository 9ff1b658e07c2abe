"""The mapper `hash`: every weight a signed sum of a few of the latent's numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Self

import torch
from torch import Tensor

from mapping_core.contexts import MapperContext
from mapping_core.interfaces.mapper import LinearMap, LinearMapper
from mapping_core.random import RandomStream

_ORDER, _SIGNS, _SHIFTS = 0x68617368, 0x68617369, 0x6861736A  # purposes: tell this mapper's draws from other kinds'
_DRAWN = 1 << 20  # words drawn at once while building
_CACHED = 1 << 16  # weights written or read at once: their indices stay in the cache


class HashMapper(LinearMapper, LinearMap):
    """``(G z)_i = sum_j e_ij z[p_j(i)] / sqrt(k)``, with seeded signs e and balanced indices p.

    Weights come in rounds of d. In each round p is a seeded permutation of the latent's
    numbers, so every number is used equally often; term j reads it at a place shifted by
    an amount of its own, so the k numbers of a weight differ and every row has norm 1
    exactly. For k = 1 and whole rounds ``G'G = (n/d) I``. A latent of fewer than k numbers
    is used whole.

    Cost: k look-ups a weight, k additions a weight for the gradient. State: k int16 a
    weight (int32 beyond 32,768 numbers): 2 bytes for k = 1. The permutation is the stable
    argsort of Philox words, so it is the same everywhere; on a CPU the gradient is summed
    in the order of the weights, whatever the number of threads. After Chen, Wilson, Tyree,
    Weinberger, Chen, "Compressing neural networks with the hashing trick" (2015), whose
    hash is neither balanced nor free of collisions within a weight.
    """

    codes: Tensor

    def __init__(self, context: MapperContext, *, k: int) -> None:
        super().__init__(context.in_features, context.out_features)
        self.terms = min(k, self.in_features)
        self.register_buffer("codes", self._drawn(context), persistent=False)

    def _drawn(self, context: MapperContext) -> Tensor:
        """Where each term of each weight stands in `prepared`, less d: [k, n]."""
        d, n, k = self.in_features, self.out_features, self.terms

        def stream(purpose: int) -> RandomStream:
            return RandomStream(context.seed, stream=context.stream, purpose=purpose)

        codes = torch.empty(k, n, dtype=torch.int16 if d <= 1 << 15 else torch.int32)
        shifts = stream(_SHIFTS).words(d).argsort(stable=True)[:k].tolist()
        negative = stream(_SIGNS).signs(n * k).view(n, k).T < 0
        rounds = max(1, _DRAWN // d)
        for start in range(0, n, rounds * d):
            count = min(rounds, -(-(n - start) // d))
            order = stream(_ORDER).words(count * d, start=start).view(count, d).argsort(dim=1, stable=True)
            stop = min(n, start + count * d)
            for j, shift in enumerate(shifts):
                index = order.roll(-shift, 1).flatten()[: stop - start]
                codes[j, start:stop] = index - d * negative[j, start:stop]
        return codes

    def unpacked(self, dtype: torch.dtype) -> HashMapper:
        """Itself: indices are widened a few at a time."""
        return self

    @property
    def prepared_shape(self) -> tuple[int, ...]:
        return (2 * self.in_features,)

    def prepare(self, z: Tensor) -> Tensor:
        """``-z`` and ``z`` over sqrt(k), [..., 2d]: looking a number up gives it with its sign."""
        return torch.cat((-z, z), dim=-1) / math.sqrt(self.terms)

    @classmethod
    def unprepare_all(cls, maps: Sequence[Self], grads: Sequence[Tensor]) -> list[Tensor]:
        halves = [torch.split(grad, each.in_features) for each, grad in zip(maps, grads, strict=True)]
        return [(plus - minus) / math.sqrt(each.terms) for each, (minus, plus) in zip(maps, halves, strict=True)]

    def rows_of(self, prepared: Tensor, start: int, stop: int) -> Tensor:
        index = self.codes[:, start:stop].int() + self.in_features
        if self.terms == 1:
            return prepared.index_select(-1, index[0])
        terms = prepared.index_select(-1, index.flatten())
        return terms.view(*prepared.shape[:-1], *index.shape).sum(-2)

    def write(self, prepared: Tensor, start: int, base: Tensor, scale: float, out: Tensor) -> None:
        for part, index in self._parts(start, len(out)):
            values = prepared.index_select(0, index[0])
            for more in index[1:]:
                values += prepared.index_select(0, more)
            torch.add(base[part], values, alpha=scale, out=out[part])

    def gather(self, grads: Sequence[Tensor], scales: Sequence[float], start: int, into: Tensor) -> None:
        if len(grads) > 1:
            grads = [torch.cat([(grad * scale).flatten() for grad, scale in zip(grads, scales, strict=True)])]
            scales = [1.0]
        grad, scale = grads[0].reshape(-1), scales[0]
        for part, index in self._parts(start, len(grad)):
            for term in index:
                into.index_add_(0, term, grad[part], alpha=scale)

    def _parts(self, start: int, count: int) -> Iterator[tuple[slice, Tensor]]:
        """Cut a range of outputs into parts: where in the range, and the indices of their terms in `prepared`."""
        for first in range(0, count, _CACHED):
            last = min(count, first + _CACHED)
            yield slice(first, last), self.codes[:, start + first : start + last].int().add_(self.in_features)
