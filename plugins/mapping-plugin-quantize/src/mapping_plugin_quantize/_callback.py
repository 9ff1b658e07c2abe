"""The callback `quantize`: lays the grid while a model trains."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from mapping_core import Callback, ConfigError, MappingTrainer
from mapping_plugin_quantize import MOST_BITS
from mapping_plugin_quantize._quantize import quantized_model

if TYPE_CHECKING:
    from mapping_core.training.history import StepRecord
    from mapping_plugin_quantize import Quantizing


class QuantizeCallback(Callback):
    """Lays the grid after the planned steps; it keeps nothing, since the model has all of it."""

    def __init__(self, config: Quantizing) -> None:
        self.config = config
        self._plan: dict[int, int] = {}

    def on_fit_start(self, trainer: MappingTrainer) -> None:
        """Make the plan, and lay the grid that is due before the first step."""
        _, generator = quantized_model(trainer.model)
        if trainer.total_steps is None:
            raise ConfigError(
                "callback 'quantize' must know how long the run is: set max_steps, or give the loader a length"
            )
        self._plan = plan(self.config, min(generator.bits), trainer.total_steps)
        # Where a run goes on right after a planned step, this lays the same grid again.
        self._due(trainer, trainer.step)

    def on_batch_end(self, trainer: MappingTrainer, record: StepRecord) -> None:
        """Lay the grid that is due after this step."""
        if record.stepped:
            self._due(trainer, record.step)

    def _due(self, trainer: MappingTrainer, step: int) -> None:
        if step in self._plan:
            model, generator = quantized_model(trainer.model)
            bits = tuple(max(own, self._plan[step]) for own in generator.bits)
            with torch.no_grad():  # which the views of the latent are to be made in, too
                generator.begin(model.latents, bits, fitted=False)


def plan(config: Quantizing, fewest: int, total_steps: int) -> dict[int, int]:
    """The least bits that any group has, after how many optimiser steps.

    >>> from mapping_plugin_quantize import Quantizing
    >>> plan(Quantizing(), 4, 100)
    {30: 4}
    >>> plan(Quantizing(begin=0.2, end=0.8), 5, 100)
    {20: 8, 40: 7, 60: 6, 80: 5}
    """
    first = round(config.begin * total_steps)
    if config.end is None or fewest == MOST_BITS:
        return {first: fewest}
    last = round(config.end * total_steps)
    falls = MOST_BITS - fewest
    return {first + round(fall * (last - first) / falls): MOST_BITS - fall for fall in range(falls + 1)}
