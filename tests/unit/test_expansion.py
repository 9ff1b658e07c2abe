"""The piece that strategies are made of, held against a mapper that breaks its contract."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from attrs import define
from torch import Tensor

from mapping_core import Mapper, MapperConfig, MappingModel, Modulation, ModulationConfig, PluginError
from mapping_core.contexts import MapperContext, ModulationContext
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


class Doubled(Modulation):
    """Twice the change, whatever the row; written without a thought of rows."""

    def forward(self, delta: dict[str, Tensor], z: Tensor, base: Mapping[str, Tensor]) -> dict[str, Tensor]:
        assert all(base[name].shape[0] == piece.shape[0] for name, piece in delta.items())
        return {name: 2 * piece for name, piece in delta.items()}


@define(frozen=True, kw_only=True)
class DoubledConfig(ModulationConfig):
    """A modulation that acts on each weight alone."""

    name = "doubled"

    def build(self, context: ModulationContext) -> Modulation:
        return Doubled()


def test_a_modulation_of_single_weights_needs_no_rows() -> None:
    """Asked for some rows, such a modulation does what it does to all."""
    model = targets.moved(MappingModel(targets.mlp(), 16, "slvt", modulation=DoubledConfig()))
    names = frozenset({"0.weight"})
    rows = model.generator.generate_some(model.latents, model.target.base.as_dict(), names, (2, 5))
    torch.testing.assert_close(rows["0.weight"], model.generate_weights()["0.weight"][2:5])
