"""What every phase policy promises."""

from __future__ import annotations

from mapping_core.testing import PhasePolicySuite
from mapping_plugin_phases import Adaptive, Bandit, Fixed, Sampled


class TestFixed(PhasePolicySuite):
    """The suite, with one horizon too."""

    component = Fixed
    configs = (Fixed(), Fixed(warmup=5, full=3, correct=2, horizons=(4,)))


class TestAdaptive(PhasePolicySuite):
    """The suite, and with lengths that cannot change."""

    component = Adaptive
    configs = (Adaptive(), Adaptive(warmup=5, full=(3, 3), correct=2, reach=(1, 1), weight=1.0))


class TestBandit(PhasePolicySuite):
    """The suite, and with one arm and a window of one phase."""

    component = Bandit
    configs = (Bandit(), Bandit(warmup=5, full=3, correct=2, horizons=(4,), window=3, alpha=1.0))


class TestSampled(PhasePolicySuite):
    """The suite, with a smaller share and sooner measured."""

    component = Sampled
    configs = (Sampled(), Sampled(keep=0.25, warmup=5, measure=3, recheck=10))
