"""What holds a plugin to its contract: suites to inherit, and the same checks as functions.

`mapping check DIST` runs them on what is installed. Needs torch; the suites need pytest.
"""

from __future__ import annotations

from mapping_core.testing.checking import Outcome, check_component, checks_of
from mapping_core.testing.contract import ContractError
from mapping_core.testing.suites import (
    CallbackSuite,
    DynamicsSuite,
    GeneratorSuite,
    LossSuite,
    MapperSuite,
    ModulationSuite,
    PhasePolicySuite,
)
from mapping_core.testing.worlds import LossWorld, MapperWorld, ModelWorld, PolicyWorld, TrajectoryWorld

__all__ = [
    "CallbackSuite",
    "ContractError",
    "DynamicsSuite",
    "GeneratorSuite",
    "LossSuite",
    "LossWorld",
    "MapperSuite",
    "MapperWorld",
    "ModelWorld",
    "ModulationSuite",
    "Outcome",
    "PhasePolicySuite",
    "PolicyWorld",
    "TrajectoryWorld",
    "check_component",
    "checks_of",
]
