"""What every loss promises, of the mapping loss and its terms."""

from __future__ import annotations

from mapping_core.testing import LossSuite
from mapping_plugin_mapping_loss import Alignment, MappingLoss, Smoothness, Stability


class TestMappingLoss(LossSuite):
    """The suite, with weights that are fixed and with learned ones, of a term that is a mean over samples."""

    component = MappingLoss
    configs = (MappingLoss(terms=(Stability(),)), MappingLoss(terms=(Stability(),), learned=True))


class TestStability(LossSuite):
    """The suite."""

    component = Stability


class TestSmoothness(LossSuite):
    """The suite."""

    component = Smoothness
    expected_failures = {"is_a_mean_over_its_items": "one random direction is drawn for all samples of a batch"}


class TestAlignment(LossSuite):
    """The suite."""

    component = Alignment
    expected_failures = {"is_a_mean_over_its_items": "the angle is that between the outputs of a whole batch"}
