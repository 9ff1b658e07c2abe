"""`Expansion`: one latent through one mapper into the parameters it feeds.

The piece that strategies are made of: `slvt` has one, `layerwise` one a layer, and
`expand` runs all of them together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate

import torch
from torch import Tensor, nn

from mapping_core.affine import Part, Piece, write_weights
from mapping_core.errors import PluginError
from mapping_core.interfaces.mapper import LinearMapper, Mapper
from mapping_core.interfaces.modulation import Modulation
from mapping_core.target.inference import is_transformed
from mapping_core.target.layout import ParameterSpec

#: From how many weights on writing them in one pass wins: below, they stay in the cache, and
#: what costs is the number of operations (`python -m benchmarks.perf.one_pass` shows both).
WORTH_ONE_PASS = 1 << 18


class Expansion(nn.Module):
    """theta_p = base_p + scale_p * piece_p(mapper(z)), for each parameter p it feeds.

    Rows of the mapper go to `parameters` in their order. A linear mapper's are written
    straight into the weights (`mapping_core.affine`); any other's output is cut into views.
    """

    def __init__(
        self, parameters: Sequence[ParameterSpec], mapper: Mapper, modulation: Modulation | None = None
    ) -> None:
        super().__init__()
        self.mapper = mapper
        self.modulation = modulation
        self.names = tuple(spec.name for spec in parameters)
        self._specs = tuple(parameters)
        starts = accumulate((spec.numel for spec in parameters), initial=0)
        self._pieces = {
            spec.name: Piece(start, spec.shape, spec.scale) for spec, start in zip(parameters, starts, strict=False)
        }

    @property
    def latent_size(self) -> int:
        """How many numbers the latent has."""
        return self.mapper.in_features

    def forward(self, z: Tensor, base: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Weights by name for a latent [..., d]; computed in float32 (float64 for float64 latents)."""
        return expand([(self, z)], base)

    def some(
        self,
        z: Tensor,
        base: Mapping[str, Tensor],
        names: frozenset[str],
        rows: tuple[int, int] | None = None,
    ) -> dict[str, Tensor]:
        """The weights in `names` alone, of these the `rows` alone, without generating the others."""
        return expand([(self, z)], base, names, rows)

    def part(
        self, z: Tensor, base: Mapping[str, Tensor], specs: Sequence[ParameterSpec], rows: tuple[int, int] | None
    ) -> tuple[tuple[str, ...], Part] | None:
        """What of `specs` is written in one pass: their names, and what to write."""
        if self.modulation is not None or z.ndim > 1 or not isinstance(self.mapper, LinearMapper):
            return None
        names = tuple(spec.name for spec in specs if spec.fixed_row is None and base[spec.name].dtype == z.dtype)
        if not names:
            return None
        return names, Part(self.mapper, tuple(self._pieces[name].rows(rows) for name in names))

    def plain(
        self, z: Tensor, base: Mapping[str, Tensor], specs: Sequence[ParameterSpec], rows: tuple[int, int] | None
    ) -> dict[str, Tensor]:
        """The weights of `specs` in plain operations."""
        if len(specs) < len(self._specs) or rows is not None:
            return self._assembled(z, base, ((spec, self._rows(z, spec, rows)) for spec in specs), rows)
        output = self.mapper(z)
        if output.shape != (*z.shape[:-1], self.mapper.out_features):
            raise PluginError(
                f"mapper {type(self.mapper).__name__} must give [..., {self.mapper.out_features}] for a latent "
                f"{list(z.shape)}, it gave {list(output.shape)}"
            )
        pieces = torch.split(output, [spec.numel for spec in self._specs], dim=-1)
        return self._assembled(z, base, zip(self._specs, pieces, strict=True))

    def chosen(self, names: frozenset[str] | None) -> Sequence[ParameterSpec]:
        """The parameters in `names` (None: all) that it feeds."""
        return self._specs if names is None else [spec for spec in self._specs if spec.name in names]

    def _rows(self, z: Tensor, spec: ParameterSpec, rows: tuple[int, int] | None) -> Tensor:
        piece = self._pieces[spec.name].rows(rows)
        return self.mapper.rows(z, piece.start, piece.start + piece.numel)

    def _assembled(
        self,
        z: Tensor,
        base: Mapping[str, Tensor],
        pieces: Iterable[tuple[ParameterSpec, Tensor]],
        rows: tuple[int, int] | None = None,
    ) -> dict[str, Tensor]:
        lead = z.shape[:-1]
        shaped = ((spec, piece.reshape(lead + self._pieces[spec.name].rows(rows).shape)) for spec, piece in pieces)
        if self.modulation is None:
            return {
                spec.name: _added(spec, _cut(base[spec.name], rows), piece, spec.scale, rows) for spec, piece in shaped
            }
        delta = {spec: piece * spec.scale for spec, piece in shaped}
        bases = {spec.name: _cut(base[spec.name], rows) for spec in delta}
        named = {spec.name: piece for spec, piece in delta.items()}
        changed = self.modulation(named, z, bases) if rows is None else self.modulation.of_rows(named, z, bases, rows)
        return {spec.name: _added(spec, bases[spec.name], changed[spec.name], 1.0, rows) for spec in delta}


def expand(
    pairs: Iterable[tuple[Expansion, Tensor]],
    base: Mapping[str, Tensor],
    names: frozenset[str] | None = None,
    rows: tuple[int, int] | None = None,
) -> dict[str, Tensor]:
    """The weights of several expansions, each under its latent; what is linear costs one node of the graph in all.

    `names` and `rows` are as in `Expansion.some`.
    """
    pairs = [(expansion, _widened(latent)) for expansion, latent in pairs]
    # A compiler fuses the plain operations itself, and better.
    large = sum(expansion.mapper.out_features for expansion, _ in pairs) >= WORTH_ONE_PASS
    in_one_pass = large and not torch.compiler.is_compiling()
    weights: dict[str, Tensor] = {}
    written: list[str] = []
    parts, latents = [], []
    for expansion, z in pairs:
        specs = expansion.chosen(names)
        if in_one_pass and (found := expansion.part(z, base, specs, rows)):
            direct, part = found
            written += direct
            parts.append(part)
            latents.append(z)
            specs = [spec for spec in specs if spec.name not in direct]
        if specs:
            weights |= expansion.plain(z, base, specs, rows)
    if parts:
        bases = [_cut(base[name], rows) for name in written]
        # Who asks for some of them does it to hold few at a time.
        made = write_weights(parts, bases, latents, keep_memory=names is None and not is_transformed())
        weights |= zip(written, made, strict=True)
    return weights


def _widened(z: Tensor) -> Tensor:
    return z if z.dtype == torch.float64 else z.float()


def _cut(tensor: Tensor, rows: tuple[int, int] | None) -> Tensor:
    return tensor if rows is None else tensor[rows[0] : rows[1]]


def _added(spec: ParameterSpec, base: Tensor, delta: Tensor, scale: float, rows: tuple[int, int] | None) -> Tensor:
    if spec.fixed_row is not None:
        first, last = (0, spec.shape[0]) if rows is None else rows
        if first <= spec.fixed_row < last:
            row = torch.tensor([spec.fixed_row - first], device=delta.device)
            delta = delta.index_fill(-len(spec.shape), row, 0.0)
    return torch.add(base, delta, alpha=scale).to(base.dtype)
