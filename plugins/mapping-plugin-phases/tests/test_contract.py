"""What every phase policy promises."""

from __future__ import annotations

from mapping_core.testing import PhasePolicySuite
from mapping_plugin_phases import Fixed, Sampled


class TestFixed(PhasePolicySuite):
    """The suite, with one horizon too."""

    component = Fixed
    configs = (Fixed(), Fixed(warmup=5, full=3, correct=2, horizons=(4,)))


class TestSampled(PhasePolicySuite):
    """The suite, with a smaller share and sooner measured."""

    component = Sampled
    configs = (Sampled(), Sampled(keep=0.25, warmup=5, measure=3, recheck=10))
