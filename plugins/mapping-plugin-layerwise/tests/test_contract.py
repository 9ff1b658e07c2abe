"""What every strategy promises, of `layerwise` and `grouped`."""

from __future__ import annotations

from mapping_core.testing import GeneratorSuite
from mapping_plugin_layerwise import Grouped, Layerwise


class TestLayerwise(GeneratorSuite):
    """The suite, under each rule of division."""

    component = Layerwise
    configs = (Layerwise(), Layerwise(budget="proportional"))


class TestGrouped(GeneratorSuite):
    """The suite, with a group of one layer and one of the rest."""

    component = Grouped
    configs = (Grouped(groups={"head": ("head.*",), "rest": ("*",)}),)
