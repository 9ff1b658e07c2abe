"""The generator of `lrd`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import torch
from attrs import define, evolve
from torch import Tensor

from mapping_core import ConfigError, Generator, GeneratorConfig, Layout, ParameterSpec
from mapping_core.contexts import GeneratorContext
from mapping_core.random import RandomStream
from mapping_core.target.tensors import TensorTree
from mapping_plugin_lrd._choice import chosen_ranks, matrix_shape

if TYPE_CHECKING:
    from mapping_plugin_lrd import Lrd

_START = 0x6C7264  # the purpose of the draw of V


@define(frozen=True)
class Factors:
    """The two parameters that stand for a weight: `left` [m, rank] is U, `right` [rank, n] is V."""

    left: ParameterSpec
    right: ParameterSpec

    @classmethod
    def of(cls, spec: ParameterSpec, rank: int) -> Factors:
        """Factors with one scale, such that their product has the standard deviation `spec.scale`."""
        rows, columns = matrix_shape(spec)
        # The product's variance is rank times the product of the factors' variances.
        scale = math.sqrt(spec.scale / math.sqrt(rank))
        common = evolve(spec, aliases=(), owners=spec.owners[:1], dtype=torch.float32, scale=scale)
        return cls(
            evolve(common, name=f"{spec.name}.u", shape=(rows, rank)),
            evolve(common, name=f"{spec.name}.v", shape=(rank, columns), fixed_row=None),
        )

    def start(self, seed: int, stream: int) -> Tensor:
        """What V starts at, float32 [rank, n]: uniform, since that takes exact arithmetic alone."""
        draws = RandomStream(seed, stream=stream, purpose=_START).uniform(self.right.numel)
        return ((2 * draws - 1) * (math.sqrt(3) * self.right.scale)).view(self.right.shape).float()


class LrdGenerator(Generator):
    """Factors by an inner strategy, and their products; what is not decomposed passes through."""

    def __init__(self, context: GeneratorContext, config: Lrd) -> None:
        super().__init__()
        ranks = chosen_ranks(context.layout.mapped, config.rank, config.layers)
        self.factors = {
            spec.name: Factors.of(spec, ranks[spec.name]) for spec in context.layout.mapped if spec.name in ranks
        }
        self.inner = context.inner(config.strategy, layout=self._inner_layout(context), latent_dim=context.latent_dim)
        starts = {} if context.base == "zero" else self._starts(context)
        self.starts = TensorTree(starts, persistent=False)
        self._refuse_still_factors(config)

    def _inner_layout(self, context: GeneratorContext) -> Layout:
        specs: list[ParameterSpec] = []
        for spec in context.layout.parameters:
            factors = self.factors.get(spec.name)
            specs += [spec] if factors is None else [factors.left, factors.right]
        return Layout(tuple(specs))

    def _starts(self, context: GeneratorContext) -> dict[str, Tensor]:
        return {
            factors.right.name: factors.start(context.seed, stream)
            for stream, factors in enumerate(self.factors.values())
        }

    def _refuse_still_factors(self, config: Lrd) -> None:
        """Refuse an inner strategy that multiplies its base: U starts at 0, and would stay there."""
        latents = {name: torch.ones(size) for name, size in self.latent_sizes.items()}
        with torch.no_grad():
            moved = any(bool(left.any()) for left, _ in self.pairs(latents).values())
        if not moved:
            assert isinstance(config.strategy, GeneratorConfig)
            raise ConfigError(
                f"strategy 'lrd': {config.strategy.name!r} inside it does not move U, which starts at 0, and nothing "
                "could learn: use one that adds to its base and does not multiply it"
            )

    @property
    def latent_sizes(self) -> dict[str, int]:
        return self.inner.latent_sizes

    def forward(self, latents: Mapping[str, Tensor], base: Mapping[str, Tensor]) -> dict[str, Tensor]:
        made = self.inner(latents, self._inner_base(latents, base, base))
        return self._joined(made, made, base, base)

    def generate_some(
        self,
        latents: Mapping[str, Tensor],
        base: Mapping[str, Tensor],
        names: frozenset[str],
        rows: tuple[int, int] | None = None,
    ) -> dict[str, Tensor]:
        inner_base = self._inner_base(latents, base, names)
        pairs = [self.factors[name] for name in names if name in self.factors]
        rights = frozenset(factors.right.name for factors in pairs)
        wanted = (names - self.factors.keys()) | {factors.left.name for factors in pairs}
        if rows is None:  # one pass through the inner strategy is enough
            made = self.inner.generate_some(latents, inner_base, wanted | rights)
            return self._joined(made, made, base, names)
        cut = {name: base[name][rows[0] : rows[1]] for name in names}
        some = self.inner.generate_some(latents, inner_base, wanted, rows)
        # All rows of V go into each row of the product.
        return self._joined(some, self.inner.generate_some(latents, inner_base, rights) if rights else {}, cut, names)

    def pairs(self, latents: Mapping[str, Tensor]) -> dict[str, tuple[Tensor, Tensor]]:
        """U and V of each decomposed weight, by its name."""
        inner_base = self._inner_base(latents, {}, self.factors)
        names = frozenset(each.name for factors in self.factors.values() for each in (factors.left, factors.right))
        made = self.inner.generate_some(latents, inner_base, names)
        return {name: (made[each.left.name], made[each.right.name]) for name, each in self.factors.items()}

    def _inner_base(
        self, latents: Mapping[str, Tensor], base: Mapping[str, Tensor], names: Iterable[str]
    ) -> dict[str, Tensor]:
        one = next(iter(latents.values()))
        dtype = torch.float64 if one.dtype == torch.float64 else torch.float32
        zero = torch.zeros((), dtype=dtype, device=one.device)
        starts = self.starts.as_dict()
        inner: dict[str, Tensor] = {}
        for name in names:
            factors = self.factors.get(name)
            if factors is None:
                inner[name] = base[name]
                continue
            start = starts.get(factors.right.name)
            inner[factors.left.name] = zero.expand(factors.left.shape)
            inner[factors.right.name] = zero.expand(factors.right.shape) if start is None else start.to(dtype)
        return inner

    def _joined(
        self,
        lefts: Mapping[str, Tensor],
        rights: Mapping[str, Tensor],
        base: Mapping[str, Tensor],
        names: Iterable[str],
    ) -> dict[str, Tensor]:
        weights: dict[str, Tensor] = {}
        for name in names:
            factors = self.factors.get(name)
            if factors is None:
                weights[name] = lefts[name]
            else:
                weights[name] = _added_product(base[name], lefts[factors.left.name], rights[factors.right.name])
        return weights

    def pack(self, latents: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
        return self.inner.pack(latents)

    def unpack(self, packed: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return self.inner.unpack(packed)

    def assignment(self) -> dict[str, tuple[str, ...]]:
        weight = {factors.left.name: name for name, factors in self.factors.items()}
        rights = {factors.right.name for factors in self.factors.values()}
        return {
            latent: tuple(weight.get(name, name) for name in names if name not in rights)
            for latent, names in self.inner.assignment().items()
        }


def _added_product(base: Tensor, left: Tensor, right: Tensor) -> Tensor:
    matrix = base.reshape(len(base), -1)
    if left.ndim == 2 and right.ndim == 2 and base.dtype == left.dtype:
        return torch.addmm(matrix, left, right).view(base.shape)
    product = left @ right
    return torch.add(matrix, product).to(base.dtype).reshape(product.shape[:-2] + base.shape)
