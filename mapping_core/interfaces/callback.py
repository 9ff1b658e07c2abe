"""The callback: an observer of training, told of its events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from mapping_core.interfaces.phase_policy import Phase
    from mapping_core.training.history import EpochRecord, StepRecord
    from mapping_core.training.trainer import MappingTrainer


class Callback:
    """Base of all callbacks; every method does nothing, override the ones you need.

    Methods that stay as they are cost nothing: the trainer collects the overridden ones
    once, when training starts. A callback that raises ends the run with a
    `CallbackError` that names it and the hook. To end a run early, call
    ``trainer.stop(reason)``.

    >>> class CountBatches(Callback):
    ...     count = 0
    ...     def on_batch_end(self, trainer, record):
    ...         self.count += 1
    """

    @property
    def state_key(self) -> str:
        """The name this callback's state is saved under; unique within a run."""
        return type(self).__qualname__

    def state_dict(self) -> dict[str, Any]:
        """What must survive a restart: plain values and tensors."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave; called when a run is resumed, after `on_fit_start`."""

    def on_fit_start(self, trainer: MappingTrainer) -> None:
        """Training is about to start."""

    def on_fit_end(self, trainer: MappingTrainer) -> None:
        """Training has ended, by itself or through `stop`; not called after an error."""

    def on_exception(self, trainer: MappingTrainer, error: BaseException) -> None:
        """Training ends with `error`, which is raised again afterwards: close what is open."""

    def on_epoch_start(self, trainer: MappingTrainer, epoch: int) -> None:
        """Epoch `epoch` (from 0) is about to start; not called again when a run goes on inside it."""

    def on_epoch_end(self, trainer: MappingTrainer, record: EpochRecord) -> None:
        """An epoch and its validation have ended; `record` holds both."""

    def on_batch_start(self, trainer: MappingTrainer, batch: Any) -> None:
        """A training batch, already on the device, is about to be used."""

    def on_batch_end(self, trainer: MappingTrainer, record: StepRecord) -> None:
        """A training batch has been used, and the optimiser step made if it was the last of those that make one.

        A checkpoint asked for here by ``trainer.request_checkpoint()`` is written when every callback has been told.
        """

    def on_validation_start(self, trainer: MappingTrainer) -> None:
        """Validation is about to start."""

    def on_validation_end(self, trainer: MappingTrainer, metrics: dict[str, float]) -> None:
        """Validation has ended with these values, for instance ``{"loss": 0.3}``."""

    def on_phase_change(self, trainer: MappingTrainer, phase: Phase) -> None:
        """Another phase of training begins."""

    def on_checkpoint(self, trainer: MappingTrainer, path: Path) -> None:
        """A checkpoint has been written to `path`."""
