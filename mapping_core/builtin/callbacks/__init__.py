"""Callbacks in core: `early_stopping`, `checkpoint`, `ema`, `log`, `csv`, `tensorboard`, `progress`, `profiler`."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from attrs import define, field
from attrs.validators import ge, gt, in_, lt

from mapping_core.components import CallbackConfig
from mapping_core.errors import ConfigError, MissingPackageError

if TYPE_CHECKING:
    from pathlib import Path

    from mapping_core.contexts import CallbackContext
    from mapping_core.interfaces.callback import Callback


@define(frozen=True, kw_only=True)
class EarlyStopping(CallbackConfig):
    """End the run when `monitor` has not improved by more than `min_delta` for `patience` epochs.

    `monitor` is a name of `EpochRecord.metrics`, such as ``val_loss`` or ``val_accuracy``;
    `mode` says whether ``"min"`` or ``"max"`` is better.
    """

    name = "early_stopping"
    monitor: str = "val_loss"
    patience: int = field(default=3, validator=ge(1))
    min_delta: float = field(default=0.0, validator=ge(0.0))
    mode: str = field(default="min", validator=in_(("min", "max")))

    def build(self, context: CallbackContext) -> Callback:
        from mapping_core.builtin.callbacks.early_stopping import EarlyStoppingCallback

        return EarlyStoppingCallback(self)


@define(frozen=True, kw_only=True)
class Checkpoint(CallbackConfig):
    """Write checkpoints to `run_dir`: at each epoch's end, and every `checkpoint_every` steps of the trainer.

    The last `keep_last` are kept, and the best by `monitor` (a name of `EpochRecord.metrics`; by
    default the validation loss, or the training loss without validation).
    """

    name = "checkpoint"
    keep_last: int = field(default=2, validator=ge(1))
    monitor: str | None = None
    mode: str = field(default="min", validator=in_(("min", "max")))

    def build(self, context: CallbackContext) -> Callback:
        from mapping_core.builtin.callbacks.checkpoint import CheckpointCallback

        return CheckpointCallback(self, _run_dir(self, context))


@define(frozen=True, kw_only=True)
class Ema(CallbackConfig):
    """Average what trains, exponentially: over about the last ``1 / (1 - decay)`` optimiser steps.

    Validation sees the averaged numbers, training its own; when training ends the model has the
    averaged ones. A checkpoint has them beside the trained ones, as ``averaged.safetensors``.
    Running statistics (BatchNorm) are not averaged.
    """

    name = "ema"
    decay: float = field(default=0.999, validator=[gt(0.0), lt(1.0)])

    def build(self, context: CallbackContext) -> Callback:
        from mapping_core.builtin.callbacks.ema import EmaCallback

        return EmaCallback(self.decay)


@define(frozen=True, kw_only=True)
class Log(CallbackConfig):
    """Log a run's events, structured: to the logger ``mapping_core`` and, with `run_dir`, to ``log.jsonl``."""

    name = "log"

    def build(self, context: CallbackContext) -> Callback:
        from mapping_core.builtin.callbacks.log import LogCallback

        return LogCallback(context.run_dir)


@define(frozen=True, kw_only=True)
class Csv(CallbackConfig):
    """Write ``run_dir/csv/metrics.csv``: an epoch's values, and each `every` steps loss, rate and gradient norm."""

    name = "csv"
    every: int = field(default=50, validator=ge(1))

    def build(self, context: CallbackContext) -> Callback:
        from mapping_core.builtin.callbacks.csv import CsvCallback

        return CsvCallback(self.every, _run_dir(self, context))


@define(frozen=True, kw_only=True)
class TensorBoard(CallbackConfig):
    """Write ``run_dir/tensorboard``: an epoch's values, and each `every` steps loss, rate and gradient norm.

    Needs the package: ``pip install tensorboard``.
    """

    name = "tensorboard"
    every: int = field(default=50, validator=ge(1))

    def build(self, context: CallbackContext) -> Callback:
        from mapping_core.builtin.callbacks.tensorboard import TensorBoardCallback

        if find_spec("tensorboard") is None:
            raise MissingPackageError("callback 'tensorboard' needs its package: pip install tensorboard")
        return TensorBoardCallback(self.every, _run_dir(self, context))


@define(frozen=True, kw_only=True)
class ProgressBar(CallbackConfig):
    """Show progress on standard error, with steps a second and the time that is left.

    A bar on a terminal, and a line an epoch.
    """

    name = "progress"

    def build(self, context: CallbackContext) -> Callback:
        from mapping_core.builtin.callbacks.progress import ProgressCallback

        return ProgressCallback()


@define(frozen=True, kw_only=True)
class Profiler(CallbackConfig):
    """Profile `batches` training batches, after `skip` others: ``run_dir/profile.txt`` and ``profile.json``.

    The first is torch's table of operations, the second a trace for ``chrome://tracing`` or Perfetto.
    """

    name = "profiler"
    skip: int = field(default=10, validator=ge(0))
    batches: int = field(default=5, validator=ge(1))

    def build(self, context: CallbackContext) -> Callback:
        from mapping_core.builtin.callbacks.profiler import ProfilerCallback

        return ProfilerCallback(self, _run_dir(self, context))


def _run_dir(component: CallbackConfig, context: CallbackContext) -> Path:
    if context.run_dir is None:
        raise ConfigError(f"{component.name!r} needs somewhere to write: set run_dir", path="callbacks")
    return context.run_dir
