"""The callback `rebase`: moves the base while a model trains."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mapping_core import Callback, ConfigError, MappingModel, MappingTrainer
from mapping_core.target.wrappers import unwrapped

if TYPE_CHECKING:
    from mapping_core.training.history import StepRecord
    from mapping_plugin_rebase import Rebase


class RebaseCallback(Callback):
    """Moves the base after the planned steps; it keeps nothing, since the model has all of it."""

    def __init__(self, config: Rebase) -> None:
        self.config = config
        self._plan: frozenset[int] = frozenset()

    def on_fit_start(self, trainer: MappingTrainer) -> None:
        """Make the plan."""
        if not isinstance(unwrapped(trainer.model), MappingModel):
            raise ConfigError(f"callback 'rebase' needs a MappingModel, got {type(trainer.model).__name__}")
        total = trainer.total_steps
        if total is None:
            raise ConfigError(
                "callback 'rebase' must know how long the run is: set max_steps, or give the loader a length"
            )
        parts = self.config.times + 1
        # Not at the run's end, where nothing would be learned in the new place.
        self._plan = frozenset(round(total * part / parts) for part in range(1, parts)) - {0, total}

    def on_batch_end(self, trainer: MappingTrainer, record: StepRecord) -> None:
        """Move the base if it is due after this step."""
        if not (record.stepped and record.step in self._plan):
            return
        model = unwrapped(trainer.model)
        assert isinstance(model, MappingModel)
        model.rebase()
        assert trainer.optimizer is not None
        trainer.optimizer.state.pop(model.latent, None)  # its moments are those of another place
