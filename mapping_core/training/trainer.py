"""`MappingTrainer`: the training loop."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler

from mapping_core.components import CallbackConfig, LossConfig, PhasePolicyConfig
from mapping_core.contexts import CallbackContext, LossContext, PhasePolicyContext
from mapping_core.conversion import structure
from mapping_core.errors import ConfigError, DataError, MappingError, NonFiniteError
from mapping_core.interfaces.callback import Callback
from mapping_core.interfaces.loss import Loss
from mapping_core.registry import Registry
from mapping_core.training.arguments import check_optimization, make_folders
from mapping_core.training.averages import Averages
from mapping_core.training.batches import Batch, adapt_batch
from mapping_core.training.config import TrainerConfig
from mapping_core.training.engine import Engine, loader_length, seed_everything
from mapping_core.training.events import Events
from mapping_core.training.history import EpochRecord, History, StepRecord
from mapping_core.training.modes import all_modules, evaluation_mode
from mapping_core.training.optimization import default_optimizer, default_schedule
from mapping_core.training.phases import PhaseRunner
from mapping_core.training.steps import forward_step

if TYPE_CHECKING:
    from lightning_fabric import Fabric

Component = str | Mapping[str, Any]


class MappingTrainer:
    """Trains a `MappingModel`, or any module, on a loader of batches.

    Batches are ``(inputs..., targets)`` or dictionaries (`batches.adapt_batch`); pass
    `batch_adapter` for other forms. `loss="auto"` means cross-entropy for integer targets
    and the mean squared error for floating ones. Without an `optimizer` there is AdamW
    over the trainable parameters with `learning_rate` (by default the rule of
    `optimization.default_learning_rate`), `warmup` and `schedule`; with one of your own,
    the rate is yours too, and `scheduler`, if given, steps after each optimiser step.

    `run_dir` is where a log and the final checkpoint go; without it nothing is written.
    `callbacks` are `Callback` objects, components, or names; a progress bar, and with
    `run_dir` a log and a checkpoint, are there unless `callbacks` brings its own of that kind.

    >>> from mapping_core import MappingModel
    >>> from torch.utils.data import DataLoader, TensorDataset
    >>> x = torch.randn(64, 8, generator=torch.Generator().manual_seed(0))
    >>> loader = DataLoader(TensorDataset(x, (x.sum(1) > 0).long()), batch_size=16)
    >>> model = MappingModel(nn.Linear(8, 2), latent_dim=8, strategy="slvt")
    >>> history = MappingTrainer(model, loader, max_epochs=5, progress=False, seed=0).fit()
    >>> history["train_loss"][-1] < history["train_loss"][0]
    True
    """

    def __init__(
        self,
        model: nn.Module,
        train_loader: Iterable[Any],
        val_loader: Iterable[Any] | None = None,
        *,
        loss: Component | LossConfig | Loss = "auto",
        max_epochs: int = 10,
        max_steps: int | None = None,
        learning_rate: float | None = None,
        weight_decay: float = 0.0,
        warmup: float = 0.05,
        schedule: str = "cosine",
        optimizer: torch.optim.Optimizer | None = None,
        scheduler: LRScheduler | None = None,
        phase_policy: Component | PhasePolicyConfig = "full",
        callbacks: Sequence[Component | CallbackConfig | Callback] = (),
        batch_adapter: Callable[[Any], Batch] = adapt_batch,
        run_dir: str | Path | None = None,
        seed: int | None = None,
        precision: str = "32-true",
        accelerator: str = "auto",
        devices: int = 1,
        progress: bool = True,
        fabric: Fabric | None = None,
        registry: Registry | None = None,
    ) -> None:
        registry = registry if registry is not None else Registry.discover()
        check_optimization(model, optimizer, scheduler)
        if not isinstance(callbacks, list | tuple):
            raise ConfigError(f"must be a list, got {callbacks!r}", path="callbacks")
        own_loss = loss if isinstance(loss, Loss) else None
        own_callbacks = [each for each in callbacks if isinstance(each, Callback)]
        #: The options, validated; what stands in a TOML file's `[trainer]`.
        self.config: TrainerConfig = structure(
            {
                "max_epochs": max_epochs,
                "max_steps": max_steps,
                "learning_rate": learning_rate,
                "weight_decay": weight_decay,
                "warmup": warmup,
                "schedule": schedule,
                "loss": "auto" if own_loss is not None else loss,
                "phase_policy": phase_policy,
                "callbacks": [each for each in callbacks if not isinstance(each, Callback)],
                "run_dir": None if run_dir is None else Path(run_dir),
                "seed": seed,
                "precision": precision,
                "accelerator": accelerator,
                "devices": devices,
                "progress": progress,
            },
            TrainerConfig,
            registry=registry,
        )
        self.model = model
        self.train_loader = train_loader
        self.val_loader = val_loader
        self.batch_adapter = batch_adapter
        self.loss: Loss = own_loss or registry.resolve(LossConfig, self.config.loss).build(LossContext(model=model))
        self._optimizer, self._scheduler = optimizer, scheduler
        #: The optimiser at work, for callbacks that change what trains; None before `fit`.
        self.optimizer: torch.optim.Optimizer | None = optimizer
        self._fabric = fabric
        self._registry = registry
        self.callbacks = [*self._default_callbacks(own_callbacks), *self._built_callbacks(), *own_callbacks]
        self._events = Events(self.callbacks)
        self.history = History()
        #: Optimiser steps done, and the epoch at hand, from 0.
        self.step = 0
        self.epoch = 0
        self._stop_reason = ""

    def stop(self, reason: str) -> None:
        """End the run after the batch at hand (and, at an epoch's end, its records); for callbacks."""
        self._stop_reason = reason or "a callback stopped it"

    def announce_checkpoint(self, path: Path) -> None:
        """Tell the callbacks that a checkpoint has been written to `path`."""
        self._events.emit("on_checkpoint", self, path)

    @property
    def total_steps(self) -> int | None:
        """Optimiser steps the run will make; None when the loader has no length and `max_steps` is unset."""
        length = loader_length(self.train_loader)
        limits = [self.config.max_steps, None if length is None else length * self.config.max_epochs]
        known = [limit for limit in limits if limit is not None]
        return min(known) if known else None

    def fit(self) -> History:
        """Train, and return the history.

        The model is trained in place, in the modes its modules have; only a model that is
        in evaluation mode as a whole is put into training mode.

        Raises `DataError` for an empty loader, `NonFiniteError` for a NaN or infinite loss
        (before the optimiser sees it), and what callbacks raise as `CallbackError`.
        """
        if not hasattr(self.train_loader, "__iter__"):
            raise DataError(f"train_loader must be an iterable of batches, got {type(self.train_loader).__name__}")
        if loader_length(self.train_loader) == 0:
            raise DataError("train_loader is empty: it has no batch to train on")
        if self.val_loader is not None and not hasattr(self.val_loader, "__iter__"):
            raise DataError(f"val_loader must be an iterable of batches, got {type(self.val_loader).__name__}")
        if self.val_loader is not None and loader_length(self.val_loader) == 0:
            raise DataError("val_loader is empty: pass val_loader=None to train without validation")
        make_folders(self.config.run_dir)
        seed_everything(self.config.seed)
        if not any(module.training for module in all_modules(self.model)):
            self.model.train()
        self.history = History()
        self.step, self.epoch, self._stop_reason = 0, 0, ""
        optimizer = self._optimizer or default_optimizer(
            self.model, learning_rate=self.config.learning_rate, weight_decay=self.config.weight_decay
        )
        self.optimizer = optimizer
        scheduler = self._scheduler
        if scheduler is None and self._optimizer is None:
            scheduler = default_schedule(
                optimizer, kind=self.config.schedule, warmup=self.config.warmup, total_steps=self.total_steps
            )
        engine = Engine.start(self.config, self._fabric, self.model, optimizer, scheduler)
        policy_config = self._registry.resolve(PhasePolicyConfig, self.config.phase_policy)
        policy = policy_config.build(PhasePolicyContext(total_steps=self.total_steps, seed=self.config.seed or 0))
        phases = PhaseRunner(policy, name=policy_config.name, total_steps=self.total_steps)
        try:
            self._events.emit("on_fit_start", self)
            for epoch in range(self.config.max_epochs):
                self.epoch = epoch
                self._run_epoch(engine, phases)
                if self._stop_reason:
                    break
            phases.finish()
            self.history.stop_reason = self._stop_reason or f"max_epochs={self.config.max_epochs} reached"
            self._events.emit("on_fit_end", self)
        except BaseException as error:
            try:
                self._events.emit("on_exception", self, error)
            except MappingError as second:  # what ended the run is what the user must see
                error.add_note(str(second))
            raise
        return self.history

    def validate(self, loader: Iterable[Any] | None = None) -> dict[str, float]:
        """Means over all items of `loader` (by default the validation loader), in evaluation mode."""
        loader = self.val_loader if loader is None else loader
        if loader is None:
            raise DataError("there is no loader to validate on: pass one, or give the trainer a val_loader")
        return self._validate(Engine.start(self.config, self._fabric, self.model), loader)

    def _run_epoch(self, engine: Engine, phases: PhaseRunner) -> None:
        started = time.perf_counter()
        averages = Averages()
        self._events.emit("on_epoch_start", self, self.epoch)
        for index, raw in enumerate(engine.batches(self.train_loader, self.epoch)):
            self._run_batch(engine, phases, averages, index, raw)
            if self.config.max_steps is not None and self.step >= self.config.max_steps:
                self._stop_reason = f"max_steps={self.config.max_steps} reached"
            if self._stop_reason:
                break
        if averages.items == 0:
            raise DataError(f"train_loader gave nothing to train on in epoch {self.epoch}: it has no batch with items")
        validation: dict[str, float] = {}
        if self.val_loader is not None:
            self._events.emit("on_validation_start", self)
            validation = self._validate(engine, self.val_loader)
            self._events.emit("on_validation_end", self, validation)
        record = EpochRecord(
            epoch=self.epoch,
            step=self.step,
            train=averages.means(),
            validation=validation,
            learning_rate=engine.last_learning_rate,
            seconds=time.perf_counter() - started,
        )
        self.history.epochs.append(record)
        self._events.emit("on_epoch_end", self, record)

    def _run_batch(self, engine: Engine, phases: PhaseRunner, averages: Averages, index: int, raw: Any) -> None:
        phase, begins = phases.begin_step(self.step)
        if begins:
            self._events.emit("on_phase_change", self, phase)
        self._events.emit("on_batch_start", self, raw)
        step = forward_step(self.model, engine.module, self.batch_adapter(raw))
        loss: Tensor = self.loss(step)
        items = self.loss.items(step)
        if items == 0:  # its mean is over nothing, which is NaN
            return
        averages.add({"loss": loss, **self.loss.metrics(step)}, items=items)
        value = loss.detach()
        if not math.isfinite(float(value)):
            raise NonFiniteError(
                f"the loss is {float(value)} at step {self.step + 1} (epoch {self.epoch}, batch {index}); no "
                "optimiser step was made with it: check the batch for NaN, or lower learning_rate"
            )
        engine.optimise(loss)
        self.step += 1
        phases.end_step(value)
        record = StepRecord(
            step=self.step,
            epoch=self.epoch,
            batch=index,
            phase=phase,
            loss=value,
            items=items,
            learning_rate=engine.last_learning_rate,
        )
        self._events.emit("on_batch_end", self, record)

    @torch.no_grad()
    def _validate(self, engine: Engine, loader: Iterable[Any]) -> dict[str, float]:
        averages = Averages()
        with evaluation_mode(self.model):
            for raw in engine.batches(loader, epoch=0):
                step = forward_step(self.model, engine.module, self.batch_adapter(raw))
                averages.add({"loss": self.loss(step), **self.loss.metrics(step)}, items=self.loss.items(step))
        if averages.items == 0:
            raise DataError("the validation loader gave no batch with items")
        return averages.means()

    def _built_callbacks(self) -> list[Callback]:
        context = CallbackContext(run_dir=self.config.run_dir)
        return [each.build(context) for each in self.config.callbacks]

    def _default_callbacks(self, own: Sequence[Callback]) -> list[Callback]:
        context = CallbackContext(run_dir=self.config.run_dir)
        names = (["progress"] if self.config.progress else []) + (
            ["log", "checkpoint"] if self.config.run_dir is not None else []
        )
        given = {each.name for each in self.config.callbacks}
        built = [self._registry.resolve(CallbackConfig, name).build(context) for name in names if name not in given]
        return [each for each in built if not any(isinstance(other, type(each)) for other in own)]
