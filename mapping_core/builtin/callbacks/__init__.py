"""Callbacks in core: `early_stopping`, `checkpoint`, `log`, `progress`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import define, field
from attrs.validators import ge, in_

from mapping_core.components import CallbackConfig
from mapping_core.errors import ConfigError

if TYPE_CHECKING:
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

        if context.run_dir is None:
            raise ConfigError("'checkpoint' needs somewhere to write: set run_dir", path="callbacks")
        return CheckpointCallback(self, context.run_dir)


@define(frozen=True, kw_only=True)
class Log(CallbackConfig):
    """Log a run's events, structured: to the logger ``mapping_core`` and, with `run_dir`, to ``log.jsonl``."""

    name = "log"

    def build(self, context: CallbackContext) -> Callback:
        from mapping_core.builtin.callbacks.log import LogCallback

        return LogCallback(context.run_dir)


@define(frozen=True, kw_only=True)
class ProgressBar(CallbackConfig):
    """Show progress on standard error: a bar on a terminal, a line an epoch elsewhere."""

    name = "progress"

    def build(self, context: CallbackContext) -> Callback:
        from mapping_core.builtin.callbacks.progress import ProgressCallback

        return ProgressCallback()
