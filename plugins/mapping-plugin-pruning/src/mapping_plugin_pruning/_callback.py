"""The callback of `pruning`: follows its plan while a model trains."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from mapping_core import Callback, ConfigError, MappingModel, MappingTrainer
from mapping_core.target.wrappers import unwrapped
from mapping_plugin_pruning._plan import plan
from mapping_plugin_pruning._prune import prune, pruned_generator

if TYPE_CHECKING:
    from mapping_core.training.history import StepRecord
    from mapping_plugin_pruning import Pruning


class PruningCallback(Callback):
    """Prunes after the planned steps; with rewinding, puts back what trains to where it was."""

    def __init__(self, config: Pruning) -> None:
        self.config = config
        self._plan: dict[int, float] = {}
        self._rewind_to = -1
        self._remembered: Tensor | None = None

    def state_dict(self) -> dict[str, Any]:
        return {} if self._remembered is None else {"remembered": self._remembered}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._remembered = state.get("remembered")

    def on_fit_start(self, trainer: MappingTrainer) -> None:
        """Make the plan, and prune what is due before the first step."""
        pruned_generator(trainer.model)
        if trainer.total_steps is None:
            raise ConfigError(
                "callback 'pruning' must know how long the run is: set max_steps, or give the loader a length"
            )
        self._plan = plan(self.config, trainer.total_steps)
        if self.config.rewind is not None:
            self._rewind_to = round(self.config.rewind * trainer.total_steps)
        self._due(trainer, trainer.step)

    def on_batch_end(self, trainer: MappingTrainer, record: StepRecord) -> None:
        """Prune what is due after this step."""
        self._due(trainer, record.step)

    def _due(self, trainer: MappingTrainer, step: int) -> None:
        model = unwrapped(trainer.model)
        assert isinstance(model, MappingModel)
        if step == self._rewind_to:
            self._remembered = model.latent_vector()
        if step in self._plan:
            prune(model, self._plan[step])
            if self._remembered is not None:
                model.load_latent_vector(self._remembered)
                assert trainer.optimizer is not None
                trainer.optimizer.state.clear()  # its moments are those of where it was
