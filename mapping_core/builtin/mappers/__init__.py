"""Mappers in core: `srht` (structured, the default) and `orthogonal` (dense, the reference)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import define, field
from attrs.validators import gt

from mapping_core.components import MapperConfig

if TYPE_CHECKING:
    from mapping_core.contexts import MapperContext
    from mapping_core.interfaces.mapper import Mapper


@define(frozen=True, kw_only=True)
class Srht(MapperConfig):
    """Subsampled randomised Hadamard transform: signs, Hadamard, signs.

    Costs one pass over the weights and under a byte of state a weight.
    """

    name = "srht"

    def build(self, context: MapperContext) -> Mapper:
        from mapping_core.builtin.mappers.srht import SrhtMapper

        return SrhtMapper(context)


@define(frozen=True, kw_only=True)
class Orthogonal(MapperConfig):
    """Dense blocks with orthonormal rows: the reference that structured mappers are held against.

    It stores n x d floats, so it refuses to be built when they take more than `max_bytes`.
    """

    name = "orthogonal"
    max_bytes: int = field(default=2 * 1024**3, validator=gt(0))

    def build(self, context: MapperContext) -> Mapper:
        from mapping_core.builtin.mappers.orthogonal import OrthogonalMapper

        return OrthogonalMapper(context, max_bytes=self.max_bytes)
