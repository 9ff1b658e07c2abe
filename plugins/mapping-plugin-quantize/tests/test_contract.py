"""What every strategy promises, of `quantized`, and every callback, of `quantize`."""

from __future__ import annotations

from mapping_core.testing import CallbackSuite, GeneratorSuite, ModelWorld
from mapping_plugin_quantize import Quantized, Quantizing


class TestQuantized(GeneratorSuite):
    """The suite, before there is a grid."""

    component = Quantized


class TestQuantizing(CallbackSuite):
    """The suite, on a model that can be quantised."""

    component = Quantizing
    world = ModelWorld(strategy=Quantized())
