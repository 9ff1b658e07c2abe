"""What every strategy promises, of `pruned`, and every callback, of `pruning`."""

from __future__ import annotations

from mapping_core.testing import CallbackSuite, GeneratorSuite, ModelWorld
from mapping_plugin_pruning import Pruned, Pruning


class TestPruned(GeneratorSuite):
    """The suite, before anything is pruned."""

    component = Pruned
    configs = (Pruned(), Pruned(method="channels"))


class TestPruning(CallbackSuite):
    """The suite, on a model that can be pruned."""

    component = Pruning
    configs = (Pruning(keep=0.5, every=2), Pruning(keep=0.5, schedule="iterative", rounds=2, rewind=0.1))
    world = ModelWorld(strategy=Pruned())
