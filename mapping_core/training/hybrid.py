"""`HybridTrainer`: the trainer's steps, for a loop of one's own."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import define, field
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from mapping_core.errors import CheckpointError
from mapping_core.interfaces.callback import Callback
from mapping_core.interfaces.phase_policy import JumpOutcome, Phase, Verdict
from mapping_core.registry import Registry
from mapping_core.training.averages import Averages
from mapping_core.training.batches import Batch, adapt_batch
from mapping_core.training.beginning import begin
from mapping_core.training.checkpoint import read_checkpoint
from mapping_core.training.config import PredictionConfig
from mapping_core.training.engine import placed
from mapping_core.training.history import History, StepRecord
from mapping_core.training.interruption import Interruption
from mapping_core.training.loop import Loop
from mapping_core.training.modes import all_modules
from mapping_core.training.randomness import random_state, seed_everything
from mapping_core.training.resumption import put_back
from mapping_core.training.trainer import MappingTrainer


@define(frozen=True, kw_only=True)
class HybridTrainerConfig:
    """How a `HybridTrainer` steps: those fields of `TrainerConfig` that do not need a loader.

    Without `prediction` every step is an ordinary one.
    """

    prediction: PredictionConfig | None = None
    accumulate: int = 1
    clip_norm: float | None = None
    clip_value: float | None = None
    nonfinite: str = "raise"
    precision: str = "32-true"
    accelerator: str = "auto"
    seed: int | None = None


@define(frozen=True, kw_only=True)
class StepResult:
    """What one batch did; None where nothing was measured.

    `was_predicted` says whether a kept jump came just before the batch, or its backward pass was made for a part of it.
    `jump` is the jump that was tried before it, `prediction_error` the relative distance of real steps from
    predicted ones where a CORRECT phase ended before it. `gradient_norm` is the optimiser step's, before clipping;
    with accumulation most batches have none. `step_time_ms` has all overhead in it. `metrics` is what the loss reports.
    """

    step: int
    loss: float
    phase: Phase
    was_predicted: bool
    jump: JumpOutcome | None
    prediction_error: float | None
    gradient_norm: float | None
    learning_rate: float
    step_time_ms: float
    metrics: Mapping[str, float] = field(factory=dict)


class _Handed:
    """The loader of batches that are handed over one by one: no length, and nothing to read ahead."""

    def __iter__(self) -> Iterator[Any]:
        return iter(())


class _LastRecord(Callback):
    record: StepRecord | None = None

    def on_batch_end(self, trainer: MappingTrainer, record: StepRecord) -> None:
        self.record = record


class HybridTrainer:
    """One `step` a batch, with the phases, the guard and the recovery of a `MappingTrainer`, whose loop it runs.

    For a mapped model and for any other, with an optimiser and, if there is one, a `scheduler` of one's own.
    Batches, `loss` and `callbacks` are those of `MappingTrainer`; epochs there are none. Probes take
    batches of the last steps, since only they are known.

    >>> import torch
    >>> torch.manual_seed(0)  # doctest: +ELLIPSIS
    <torch._C.Generator object at ...>
    >>> model = nn.Linear(8, 2)
    >>> trainer = HybridTrainer(model, torch.optim.Adam(model.parameters(), 0.01), HybridTrainerConfig())
    >>> for _ in range(3):
    ...     result = trainer.step((torch.randn(4, 8), torch.zeros(4, dtype=torch.long)))
    >>> result.step, result.phase.name, result.was_predicted, result.prediction_error
    (3, 'FULL', False, None)
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        config: HybridTrainerConfig | None = None,
        *,
        loss: Any = "auto",
        scheduler: LRScheduler | None = None,
        callbacks: Sequence[Any] = (),
        batch_adapter: Callable[[Any], Batch] = adapt_batch,
        registry: Registry | None = None,
    ) -> None:
        self.config = config = config or HybridTrainerConfig()
        self._last = _LastRecord()
        self._trainer = MappingTrainer(
            model,
            _Handed(),
            loss=loss,
            optimizer=optimizer,
            scheduler=scheduler,
            accumulate=config.accumulate,
            clip_norm=config.clip_norm,
            clip_value=config.clip_value,
            nonfinite=config.nonfinite,
            prediction=config.prediction,
            callbacks=[*callbacks, self._last],
            batch_adapter=batch_adapter,
            seed=config.seed,
            precision=config.precision,
            accelerator=config.accelerator,
            progress=False,
            registry=registry,
        )
        self._loop: Loop | None = None

    @property
    def history(self) -> History:
        """Phases, their outcomes and recoveries; no epochs."""
        return self._trainer.history

    def step(self, batch: Any) -> StepResult:
        """Train on one batch; raises what `MappingTrainer.fit` raises.

        With `accumulate` the optimiser's step is made with the last batch of each window.
        """
        started = time.perf_counter()
        loop = self._loop or self._started(None)
        outcomes = loop.phases.outcomes
        known = len(outcomes)
        loop.averages = Averages()
        loop.run_batch(placed(loop.fabric, batch))
        record = self._last.record
        assert record is not None
        jump = next((each.jump for each in outcomes[known:] if each.jump is not None), None)
        errors = [each.prediction_error for each in outcomes[known:] if each.prediction_error is not None]
        metrics = loop.averages.means() if loop.averages.items else {}
        return StepResult(
            step=record.step,
            loss=float(record.loss),
            phase=record.phase,
            was_predicted=record.phase is Phase.PREDICT or (jump is not None and jump.verdict is Verdict.ACCEPTED),
            jump=jump,
            prediction_error=errors[-1] if errors else None,
            gradient_norm=record.gradient_norm if record.stepped else None,
            learning_rate=record.learning_rate,
            step_time_ms=1e3 * (time.perf_counter() - started),
            metrics={name: value for name, value in metrics.items() if name != "loss"},
        )

    def save(self, folder: str | Path) -> None:
        """Write all that stepping goes on from to a new folder, or in the place of an older one there.

        Raises `CheckpointError` between the batches of one optimiser step.
        """
        loop = self._loop or self._started(None)
        if loop.in_window:
            raise CheckpointError(f"{folder}: batches wait for their optimiser step: save after it")
        loop.write(Path(folder), epoch=0, batch=self._trainer.batch)

    def load(self, folder: str | Path) -> None:
        """Go on from what `save` wrote, bit for bit on a CPU, inside a phase too; the next batch is yours to know."""
        self._started(Path(folder))

    def _started(self, checkpoint: Path | None) -> Loop:
        trainer, seed = self._trainer, self.config.seed
        state = None if checkpoint is None else read_checkpoint(checkpoint)
        fabric = trainer.start_fabric()
        seed_everything(None if seed is None else (seed + fabric.global_rank) % 2**64)
        if not any(module.training for module in all_modules(trainer.model)):
            trainer.model.train()
        loop = begin(trainer, fabric, Interruption(), checkpoint, state)
        loop.epoch_random = random_state(loop.loader)
        trainer.emit("on_fit_start", trainer)
        if state is not None:
            put_back(loop, state)
        loop.refusals.keep()
        self._loop = loop
        return loop
