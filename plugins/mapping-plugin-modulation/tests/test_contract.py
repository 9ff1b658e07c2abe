"""What every modulation promises, of the plugin's five, and every strategy, of `finetune`."""

from __future__ import annotations

from mapping_core.testing import GeneratorSuite, ModulationSuite
from mapping_plugin_modulation import Additive, Affine, BlockScale, Finetune, Gain, LowRank


class TestAdditive(ModulationSuite):
    """The suite, with a factor that shows."""

    component = Additive
    configs = (Additive(alpha=0.02),)


class TestAffine(ModulationSuite):
    """The suite."""

    component = Affine


class TestGain(ModulationSuite):
    """The suite, with a number a channel and with groups."""

    component = Gain
    configs = (Gain(), Gain(groups=3, strength=0.5))


class TestBlockScale(ModulationSuite):
    """The suite, by blocks of either depth."""

    component = BlockScale
    configs = (BlockScale(), BlockScale(depth=1))


class TestLowRank(ModulationSuite):
    """The suite."""

    component = LowRank
    configs = (LowRank(rank=2),)


class TestFinetune(GeneratorSuite):
    """The suite, of gates and of deltas."""

    component = Finetune
    configs = (Finetune(), Finetune(kind="deltas"))
