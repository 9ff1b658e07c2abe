"""The few components core registers itself, through the same hooks as any plugin.

This module imports no torch; each class's `build` does.
"""

from __future__ import annotations

from mapping_core.builtin.callbacks import (
    Checkpoint,
    Csv,
    EarlyStopping,
    Ema,
    Log,
    Profiler,
    ProgressBar,
    TensorBoard,
)
from mapping_core.builtin.losses import Auto, CrossEntropy, Mse
from mapping_core.builtin.mappers import Orthogonal, Srht
from mapping_core.builtin.phase_policies import Full
from mapping_core.components import CallbackConfig, LossConfig, MapperConfig, PhasePolicyConfig
from mapping_core.hookspecs import hookimpl

__all__ = [
    "Auto",
    "Checkpoint",
    "CrossEntropy",
    "Csv",
    "EarlyStopping",
    "Ema",
    "Full",
    "Log",
    "Mse",
    "Orthogonal",
    "Profiler",
    "ProgressBar",
    "Srht",
    "TensorBoard",
]


@hookimpl
def mapping_mappers() -> list[type[MapperConfig]]:
    return [Srht, Orthogonal]


@hookimpl
def mapping_losses() -> list[type[LossConfig]]:
    return [Auto, CrossEntropy, Mse]


@hookimpl
def mapping_phase_policies() -> list[type[PhasePolicyConfig]]:
    return [Full]


@hookimpl
def mapping_callbacks() -> list[type[CallbackConfig]]:
    return [EarlyStopping, Checkpoint, Ema, Log, Csv, TensorBoard, ProgressBar, Profiler]
