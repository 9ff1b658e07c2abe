"""What every strategy promises, of `lrd`."""

from __future__ import annotations

from mapping_core.testing import GeneratorSuite
from mapping_plugin_lrd import Lrd


class TestLrd(GeneratorSuite):
    """The suite, by default and as the strategy inside itself."""

    component = Lrd
    configs = (Lrd(), Lrd(rank=2, strategy=Lrd(rank=1)))
