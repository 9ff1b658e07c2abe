"""Short Fourier series of the latent as a mapper."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import define, field
from attrs.validators import ge
from mapping_core import MapperConfig, hookimpl

if TYPE_CHECKING:
    from mapping_core import Mapper
    from mapping_core.contexts import MapperContext

__version__ = "1.0.0"
__all__ = ["Fourier", "mapping_mappers"]


@define(frozen=True, kw_only=True)
class Fourier(MapperConfig):
    """Each weight is a sum of `terms` sines, of growing frequency, of numbers of the latent."""

    name = "fourier"
    terms: int = field(default=4, validator=ge(1))

    def build(self, context: MapperContext) -> Mapper:
        from mapping_plugin_fourier._mapper import FourierMapper

        return FourierMapper(self, context)


@hookimpl
def mapping_mappers() -> list[type[MapperConfig]]:
    return [Fourier]
