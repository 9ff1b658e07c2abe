"""The piece that strategies are made of, held against a mapper that breaks its contract."""

from __future__ import annotations

import pytest
from attrs import define
from torch import Tensor

from mapping_core import Mapper, MapperConfig, MappingModel, PluginError
from mapping_core.contexts import MapperContext
from tests import targets


class Short(Mapper):
    """Gives one output too few."""

    def forward(self, z: Tensor) -> Tensor:
        return z.new_zeros(*z.shape[:-1], self.out_features - 1)


@define(frozen=True, kw_only=True)
class ShortConfig(MapperConfig):
    """A mapper with a fault."""

    name = "short"

    def build(self, context: MapperContext) -> Mapper:
        return Short(context.in_features, context.out_features)


@pytest.mark.parametrize("strategy", ["slvt", "layerwise"])
def test_a_mapper_of_the_wrong_size_is_named(strategy: str) -> None:
    """The error says which mapper gave what, and what it should have given."""
    model = MappingModel(targets.mlp(), 16, strategy, mapper=ShortConfig())
    with pytest.raises(
        PluginError, match=r"mapper Short must give \[\.\.\., \d+\] for a latent \[\d+\], it gave \[\d+\]"
    ):
        model.generate_weights()
