"""What every dynamics model promises."""

from __future__ import annotations

from mapping_core.testing import DynamicsSuite
from mapping_plugin_dynamics import Dmd, Ema, Kalman, Linear, Lookahead, Nothing, Ols, Random, Subspace


class TestLinear(DynamicsSuite):
    """The suite, with a middle snapshot too."""

    component = Linear
    configs = (Linear(), Linear(snapshots=9, stride=1))


class TestOls(DynamicsSuite):
    """The suite, with lines and parabolas."""

    component = Ols
    configs = (Ols(), Ols(degree=2))


class TestSubspace(DynamicsSuite):
    """The suite."""

    component = Subspace


class TestDmd(DynamicsSuite):
    """The suite, with and without bags."""

    component = Dmd
    configs = (Dmd(), Dmd(rank=5, bags=3))


class TestKalman(DynamicsSuite):
    """The suite."""

    component = Kalman


class TestNothing(DynamicsSuite):
    """The suite, but for proposing."""

    component = Nothing
    expected_failures = {"proposes_in_order": "it never proposes: that is what it is for"}


class TestRandom(DynamicsSuite):
    """The suite."""

    component = Random


class TestLookahead(DynamicsSuite):
    """The suite."""

    component = Lookahead


class TestEma(DynamicsSuite):
    """The suite."""

    component = Ema
