"""The loop of one `fit`: epochs, batches, optimiser steps, and the state from which it can go on."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim.lr_scheduler import ReduceLROnPlateau

from mapping_core.errors import DataError, NonFiniteError
from mapping_core.interfaces.phase_policy import Phase
from mapping_core.training.agreement import Asked, agree_on, gathered
from mapping_core.training.averages import Averages
from mapping_core.training.buffers import BufferGuard
from mapping_core.training.checkpoint import write_checkpoint
from mapping_core.training.engine import forward_of, loader_length, placed, scaler_of, trainable_parameters
from mapping_core.training.gradients import Agreed, GradientWindow
from mapping_core.training.history import EpochRecord, PhaseRecord, StepRecord
from mapping_core.training.interruption import Interrupted, Interruption
from mapping_core.training.loading import epoch_batches
from mapping_core.training.optimization import multiply_rate
from mapping_core.training.phases import PhaseRunner
from mapping_core.training.randomness import random_state
from mapping_core.training.refusals import Refusals
from mapping_core.training.resumption import run_state
from mapping_core.training.steps import forward_step

if TYPE_CHECKING:
    from lightning_fabric import Fabric

    from mapping_core.training.prediction import Predictor
    from mapping_core.training.recovery import Recovery
    from mapping_core.training.selection import Selection
    from mapping_core.training.trainer import MappingTrainer


class Loop:
    """Runs a trainer's epochs; made anew by every `fit`.

    The trainer keeps what callbacks see (`step`, `epoch`, `batch`, `history`), this the rest.
    """

    def __init__(
        self,
        trainer: MappingTrainer,
        fabric: Fabric,
        *,
        loader: Any,
        order_seed: int,
        optimizer: torch.optim.Optimizer,
        scheduler: Any,
        phases: PhaseRunner,
        selection: Selection | None,
        interruption: Interruption,
    ) -> None:
        self.trainer, self.fabric, self.loader, self.order_seed = trainer, fabric, loader, order_seed
        self.optimizer, self.scheduler, self.phases = optimizer, scheduler, phases
        self._selection = selection
        self.predictor: Predictor | None = None  # set where jumps are made, which it makes through this loop
        self.recovery: Recovery | None = None  # set where divergence is watched for
        self.rate_factor = 1.0  # what jumps and recoveries have multiplied the learning rate by
        self._interruption = interruption
        self._config = trainer.config
        self.length = loader_length(loader)
        self._forward = forward_of(fabric, trainer.model)
        self._window = GradientWindow(
            fabric, trainable_parameters(trainer.model, trainer.loss, optimizer), trainer.config
        )
        self._scaler = scaler_of(fabric)
        self.buffers = BufferGuard(trainer.model)
        self.averages = Averages()
        self.epoch_random: dict[str, Any] = {}
        self.goes_on = False  # inside an epoch that another process began
        self._seconds = 0.0  # which that process spent in it
        self._learning_rate = float(optimizer.param_groups[0]["lr"])
        self._norm = 0.0
        self._gain: float | None = None
        self._fault = ""
        self.refusals = Refusals(self)
        self._closed = False  # a checkpoint from here on would be of a run that has ended

    # --- epochs

    def run(self) -> None:
        """All epochs that are left."""
        trainer = self.trainer
        while trainer.epoch < self._config.max_epochs:
            # Before the first step too: a run may be resumed where it had ended, or stopped by on_fit_start.
            if trainer.stop_reason or (trainer.batch == 0 and self._has_all_steps()):
                return
            self._run_epoch()
            if trainer.stop_reason:
                return
            trainer.epoch += 1
            trainer.batch = 0

    def _run_epoch(self) -> None:
        trainer, started = self.trainer, time.perf_counter()
        if not self.goes_on:
            self.averages, self._seconds = Averages(), 0.0
            self.epoch_random = random_state(self.loader)
            self.refusals.keep()
            trainer.emit("on_epoch_start", trainer, trainer.epoch)
        batches = epoch_batches(self.loader, trainer.epoch, skip=trainer.batch, began_with=self.epoch_random)
        self.goes_on = False
        stopped = self._run_batches(batches)
        if stopped and any(gathered(self.fabric, self.length is None or trainer.batch < self.length)):
            self.save()
            self._closed = True
        self.buffers.average(self.fabric)
        train = self._train_means()
        if self.averages.items == 0 and self.refusals.count:
            raise NonFiniteError(
                f"no batch of epoch {trainer.epoch} had a finite loss: check the data, or lower learning_rate"
            )
        if self.averages.items == 0:
            raise DataError(
                f"train_loader gave nothing to train on in epoch {trainer.epoch}: it has no batch with items"
            )
        validation: dict[str, float] = {}
        if trainer.val_loader is not None:
            trainer.emit("on_validation_start", trainer)
            validation = trainer.evaluate(self.fabric, trainer.val_loader, "validation")
            trainer.emit("on_validation_end", trainer, validation)
        record = EpochRecord(
            epoch=trainer.epoch,
            step=trainer.step,
            train=train,
            validation=validation,
            learning_rate=self._learning_rate,
            seconds=self._seconds + time.perf_counter() - started,
        )
        self._step_scheduler("epoch", record)
        trainer.history.epochs.append(record)
        trainer.emit("on_epoch_end", trainer, record)
        self._end_epoch()

    def _end_epoch(self) -> None:
        trainer = self.trainer
        asked = agree_on(self.fabric, self._asked())
        if asked.stop:
            trainer.stop_reason = next(filter(None, gathered(self.fabric, trainer.stop_reason)))
        if asked.save or asked.signum:
            self.save(epoch=trainer.epoch + 1, batch=0)
        if asked.signum:
            raise Interrupted(asked.signum)

    def _asked(self) -> Asked:
        """What callbacks and signals of this rank want."""
        trainer = self.trainer
        return Asked(stop=bool(trainer.stop_reason), save=trainer.take_request(), signum=self._interruption.signum)

    def _train_means(self) -> dict[str, float]:
        if self.fabric.world_size > 1:
            self.averages.merge(gathered(self.fabric, self.averages.state_dict()))
        return self.averages.means()

    # --- batches

    def _run_batches(self, batches: Iterator[Any]) -> bool:
        """All batches of the epoch; true if the run is to stop."""
        if self._has_all_steps():  # resumed where it had ended
            self.trainer.stop(self._all_steps)
            return True
        for raw in batches:
            if self.run_batch(placed(self.fabric, raw)):
                return True
        # A loader may be shorter than it said, and other ranks may still be at work.
        while self._window.batches or self.fabric.world_size > 1:
            if self._window.batches == 0:
                self._begin_window()
            agreed = self._optimise(ended=True)
            if self._after_window():
                return True
            if agreed.ended:
                break
        return False

    def run_batch(self, raw: Any) -> bool:
        """One batch, and the optimiser step where it is the last of its window; true if the run is to stop."""
        trainer = self.trainer
        if self._window.batches == 0:
            self._begin_window()
        trainer.emit("on_batch_start", trainer, raw)
        if self.predictor is not None:
            self.predictor.note(raw)
        if self.phases.keep is None:
            step = forward_step(trainer.model, self._forward, trainer.batch_adapter(raw))
            loss: Tensor = trainer.loss(step)
            items = trainer.loss.items(step)
            value = loss.detach()
            metrics = None
        else:
            loss, value, items, metrics = self._run_selected(raw)
        if items and not math.isfinite(float(value)):
            self._fault = f"the loss is {float(value)}"
            self._window.refuse()
        else:
            if metrics is None:
                metrics = trainer.loss.metrics(step)
            self.averages.add({"loss": value, **metrics}, items=items)
            self._window.add(loss, items)
        batch, before = trainer.batch, trainer.step
        trainer.batch += 1
        complete = self._window.batches == self._config.accumulate or trainer.batch == self.length
        if complete:
            self._optimise()
        assert self.phases.phase is not None
        record = StepRecord(
            step=trainer.step,
            epoch=trainer.epoch,
            batch=batch,
            phase=self.phases.phase,
            loss=value,
            items=items,
            learning_rate=self._learning_rate,
            stepped=trainer.step > before,
            gradient_norm=self._norm if trainer.step > before else 0.0,
        )
        trainer.emit("on_batch_end", trainer, record)
        return complete and self._after_window()

    def _run_selected(self, raw: Any) -> tuple[Tensor, Tensor, int, Mapping[str, Tensor | float]]:
        assert self._selection is not None
        assert self.phases.keep is not None
        selected = self._selection.run(raw, self.phases.keep)
        self._gain = selected.gain
        return selected.loss, selected.value, selected.items, selected.metrics

    @property
    def in_window(self) -> bool:
        """Whether batches wait for others of the same optimiser step."""
        return self._window.batches > 0

    def _begin_window(self) -> None:
        if self.recovery is not None:
            self.recovery.begin_window()
        self.phases.begin_step(self.trainer.step)
        self.buffers.keep()

    def announce(self, phase: Phase) -> None:
        """Record that another phase begins, and tell the callbacks."""
        phases = self.trainer.history.phases
        if self.predictor is not None and phases and phases[-1].phase is Phase.CORRECT:
            self.predictor.settle()
        phases.append(PhaseRecord(step=self.trainer.step, phase=phase))
        self.trainer.emit("on_phase_change", self.trainer, phase)

    def _after_window(self) -> bool:
        """Do what callbacks and signals of any rank asked for, on all alike; true if the run is to stop."""
        trainer = self.trainer
        if self.recovery is not None:
            self.recovery.end_window()
        asked = agree_on(self.fabric, self._asked())
        if asked.signum:
            self.save()
            raise Interrupted(asked.signum)
        if self._has_all_steps():
            trainer.stop(self._all_steps)
        elif not asked.stop:
            if asked.save:
                self.save()
            return False
        if asked.save:
            trainer.request_checkpoint()  # for the epoch's end
        return True

    def _has_all_steps(self) -> bool:
        return self._config.max_steps is not None and self.trainer.step >= self._config.max_steps

    @property
    def _all_steps(self) -> str:
        return f"max_steps={self._config.max_steps} reached"

    # --- steps

    def _optimise(self, *, ended: bool = False) -> Agreed:
        """End the window: reduce its gradients, and step if they are finite."""
        agreed = self._window.agree(ended=ended)
        if agreed.bad:
            self.refusals.refuse(self._fault or "the loss is not finite on another rank")
        elif agreed.items:
            self._step(agreed.loss)
        self._window.clear()
        self._fault = ""
        return agreed

    def _step(self, loss: Tensor) -> None:
        if self._scaler is not None:
            self._scaler.unscale_(self.optimizer)
        self._norm = self._window.clip()
        finite = math.isfinite(self._norm)
        if not finite and self._scaler is None:
            self.refusals.refuse(f"the gradient's norm is {self._norm}")
            return
        if finite and self.recovery is not None and not self.recovery.allows(float(loss), self._norm):
            return
        self._learning_rate = float(self.optimizer.param_groups[0]["lr"])
        self.fabric.strategy.optimizer_step(self.optimizer)
        if not finite:  # the scaler made no step, and lowered its scale
            self.refusals.add(f"the gradient's norm is {self._norm} at every scale")
            return
        self.refusals.count = 0
        self.trainer.step += 1
        self._step_scheduler("step")
        if self.predictor is not None:
            self.predictor.observe(float(loss), self.trainer.step, self._window.batches)
        self.phases.end_step(loss, self._gain)

    def leave_out(self) -> None:
        """Make nothing of a window whose gradient is there."""
        self.buffers.put_back()
        if self._scaler is not None:
            self._scaler.update()  # which lets it unscale the next one

    def _step_scheduler(self, moment: str, record: EpochRecord | None = None) -> None:
        scheduler = self.scheduler
        if scheduler is None or moment != (
            self._config.scheduler_interval if self.trainer.own_scheduler is not None else "step"
        ):
            return
        if isinstance(scheduler, ReduceLROnPlateau):
            assert record is not None
            scheduler.step(record.validation.get("loss", record.train["loss"]))
        else:
            scheduler.step()

    # --- state

    def multiply_rate(self, factor: float) -> None:
        """Multiply the learning rate, for the schedule to come too."""
        self.rate_factor *= factor
        multiply_rate(self.optimizer, self.scheduler, factor)

    def training_state(self) -> dict[str, Any]:
        """What trains beside the model: optimiser, scheduler, scaler, the loss's own parameters."""
        return {
            "optimizer": self.optimizer.state_dict(),
            "scheduler": None if self.scheduler is None else self.scheduler.state_dict(),
            "scaler": None if self._scaler is None else self._scaler.state_dict(),
            "loss": self.trainer.loss.state_dict(),
        }

    def load_training_state(self, state: dict[str, Any]) -> None:
        """Take back what `training_state` gave."""
        self.optimizer.load_state_dict(state["optimizer"])
        if self.scheduler is not None and state["scheduler"] is not None:
            self.scheduler.load_state_dict(state["scheduler"])
        if self._scaler is not None and state["scaler"] is not None:
            self._scaler.load_state_dict(state["scaler"])
        self.trainer.loss.load_state_dict(state["loss"])

    def save(self, *, epoch: int | None = None, batch: int | None = None) -> None:
        """Write a checkpoint, if the run has a folder, and announce it."""
        trainer = self.trainer
        if self._config.run_dir is None or self._closed:
            return
        folder = self._config.run_dir / "checkpoints" / f"step-{trainer.step:08d}"
        self.write(
            folder, epoch=trainer.epoch if epoch is None else epoch, batch=trainer.batch if batch is None else batch
        )
        self.refusals.keep()
        trainer.emit("on_checkpoint", trainer, folder)

    def write(self, folder: Path, *, epoch: int, batch: int) -> None:
        """Write the state at `batch` of `epoch` to `folder`."""
        state = run_state(self, epoch=epoch, batch=batch)
        with self.buffers.averaged(self.fabric):
            if self.fabric.is_global_zero:
                write_checkpoint(folder, self.trainer.model, state)
            self.fabric.barrier()
