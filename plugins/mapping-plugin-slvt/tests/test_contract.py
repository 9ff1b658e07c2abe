"""What every strategy promises, of `slvt`."""

from __future__ import annotations

from mapping_core.testing import GeneratorSuite
from mapping_plugin_slvt import Slvt


class TestSlvt(GeneratorSuite):
    """The suite, with the mapper of its world."""

    component = Slvt
