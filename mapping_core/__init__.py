"""Train a PyTorch model by training a small latent vector: the public names.

What is needed to write a plugin or read a configuration is imported here and is
torch-free; the names that need torch are imported when they are first used.

>>> import mapping_core
>>> mapping_core.__version__
'0.1.0'
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

from mapping_core.components import (
    CallbackConfig,
    Component,
    DynamicsConfig,
    GeneratorConfig,
    LossConfig,
    MapperConfig,
    ModulationConfig,
    PhasePolicyConfig,
)
from mapping_core.config import RunConfig
from mapping_core.errors import (
    AmbiguousComponentError,
    BudgetError,
    CallbackError,
    CheckpointError,
    ConfigError,
    DataError,
    DivergenceError,
    FileFormatError,
    LossError,
    MappingError,
    MissingPackageError,
    NonFiniteError,
    PluginError,
    TargetError,
    UnknownComponentError,
)
from mapping_core.hookspecs import hookimpl
from mapping_core.registry import Registry
from mapping_core.training.config import GuardConfig, PredictionConfig, TrainerConfig
from mapping_core.training.divergence import DivergenceLevel, DivergenceReport, RecoveryAction, Thresholds

if TYPE_CHECKING:
    from mapping_core.expansion import Expansion, expand
    from mapping_core.interfaces.callback import Callback
    from mapping_core.interfaces.dynamics import DynamicsModel
    from mapping_core.interfaces.generator import Generator
    from mapping_core.interfaces.loss import Loss
    from mapping_core.interfaces.mapper import LinearMap, LinearMapper, Mapper
    from mapping_core.interfaces.modulation import Modulation
    from mapping_core.interfaces.phase_policy import Phase, PhaseDecision, PhaseOutcome, PhasePolicy
    from mapping_core.model import MappingModel
    from mapping_core.target.layout import Layout, ParameterSpec
    from mapping_core.training.batches import Batch
    from mapping_core.training.history import History
    from mapping_core.training.hybrid import HybridTrainer, HybridTrainerConfig, StepResult
    from mapping_core.training.interruption import Interrupted
    from mapping_core.training.learning_rate import find_learning_rate
    from mapping_core.training.trainer import MappingTrainer

#: The public names that need torch, and the module each lives in.
_LAZY = {
    "Batch": "mapping_core.training.batches",
    "Callback": "mapping_core.interfaces.callback",
    "DynamicsModel": "mapping_core.interfaces.dynamics",
    "Expansion": "mapping_core.expansion",
    "expand": "mapping_core.expansion",
    "Generator": "mapping_core.interfaces.generator",
    "History": "mapping_core.training.history",
    "HybridTrainer": "mapping_core.training.hybrid",
    "HybridTrainerConfig": "mapping_core.training.hybrid",
    "Interrupted": "mapping_core.training.interruption",
    "Layout": "mapping_core.target.layout",
    "Loss": "mapping_core.interfaces.loss",
    "LinearMap": "mapping_core.interfaces.mapper",
    "LinearMapper": "mapping_core.interfaces.mapper",
    "Mapper": "mapping_core.interfaces.mapper",
    "MappingModel": "mapping_core.model",
    "MappingTrainer": "mapping_core.training.trainer",
    "Modulation": "mapping_core.interfaces.modulation",
    "ParameterSpec": "mapping_core.target.layout",
    "Phase": "mapping_core.interfaces.phase_policy",
    "PhaseDecision": "mapping_core.interfaces.phase_policy",
    "PhaseOutcome": "mapping_core.interfaces.phase_policy",
    "PhasePolicy": "mapping_core.interfaces.phase_policy",
    "StepResult": "mapping_core.training.hybrid",
    "find_learning_rate": "mapping_core.training.learning_rate",
}

__all__ = [
    "AmbiguousComponentError",
    "Batch",
    "BudgetError",
    "Callback",
    "CallbackConfig",
    "CallbackError",
    "CheckpointError",
    "Component",
    "ConfigError",
    "DataError",
    "DivergenceError",
    "DivergenceLevel",
    "DivergenceReport",
    "DynamicsConfig",
    "DynamicsModel",
    "Expansion",
    "FileFormatError",
    "Generator",
    "GeneratorConfig",
    "GuardConfig",
    "History",
    "HybridTrainer",
    "HybridTrainerConfig",
    "Interrupted",
    "Layout",
    "LinearMap",
    "LinearMapper",
    "Loss",
    "LossConfig",
    "LossError",
    "Mapper",
    "MapperConfig",
    "MappingError",
    "MappingModel",
    "MappingTrainer",
    "MissingPackageError",
    "Modulation",
    "ModulationConfig",
    "NonFiniteError",
    "ParameterSpec",
    "Phase",
    "PhaseDecision",
    "PhaseOutcome",
    "PhasePolicy",
    "PhasePolicyConfig",
    "PluginError",
    "PredictionConfig",
    "RecoveryAction",
    "Registry",
    "RunConfig",
    "StepResult",
    "TargetError",
    "Thresholds",
    "TrainerConfig",
    "UnknownComponentError",
    "__version__",
    "expand",
    "find_learning_rate",
    "hookimpl",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'mapping_core' has no attribute {name!r}")
    value = getattr(importlib.import_module(_LAZY[name]), name)
    globals()[name] = value  # the next access finds it without coming here
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(_LAZY))
