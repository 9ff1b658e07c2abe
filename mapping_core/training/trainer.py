"""`MappingTrainer`: the training loop."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from mapping_core.builtin.losses.function import loss_of
from mapping_core.components import CallbackConfig, LossConfig
from mapping_core.contexts import CallbackContext, LossContext
from mapping_core.conversion import structure
from mapping_core.errors import ConfigError, DataError, MappingError
from mapping_core.interfaces.callback import Callback
from mapping_core.interfaces.loss import Loss
from mapping_core.model import MappingModel
from mapping_core.registry import Registry
from mapping_core.target.wrappers import unwrapped
from mapping_core.training.arguments import check_loader, check_optimization, make_folders
from mapping_core.training.batches import Batch, adapt_batch, adapted_inputs, inputs_of
from mapping_core.training.beginning import begin
from mapping_core.training.checkpoint import check_resume, find_checkpoint, read_checkpoint
from mapping_core.training.config import PredictionConfig, TrainerConfig
from mapping_core.training.engine import check_strategy, forward_of, loader_length, make_fabric, place, placed
from mapping_core.training.evaluation import check_metrics, evaluate, predict
from mapping_core.training.events import Events
from mapping_core.training.history import History
from mapping_core.training.interruption import Interruption
from mapping_core.training.modes import all_modules
from mapping_core.training.occupation import occupied
from mapping_core.training.randomness import seed_everything, undisturbed
from mapping_core.training.resumption import put_back
from mapping_core.training.sampling import set_epoch, with_own_order
from mapping_core.training.state import check_plain

if TYPE_CHECKING:
    from lightning_fabric import Fabric

    from mapping_core.config import RunConfig

Component = str | Mapping[str, Any]


class MappingTrainer:
    """Trains a `MappingModel`, or any module, on a loader of batches.

    Batches are ``(inputs..., targets)`` or dictionaries (`batches.adapt_batch`); pass
    `batch_adapter` for other forms. `loss="auto"` means cross-entropy for integer targets
    and the mean squared error for floating ones; any function of outputs and targets that
    returns a batch's mean is a loss too, such as ``nn.CrossEntropyLoss()``. Without an `optimizer` there is AdamW
    over the trainable parameters with `learning_rate` (by default the rule of
    `optimization.default_learning_rate`), `warmup` and `schedule`; with one of your own,
    the rate is yours too, and `scheduler`, if given, steps after each optimiser step.

    `prediction`, a `PredictionConfig`, makes training predictive (`docs/prediction.md`).

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
        loss: Component | LossConfig | Loss | Callable[[Any, Any], Any] = "auto",
        max_epochs: int = 10,
        max_steps: int | None = None,
        learning_rate: float | None = None,
        weight_decay: float = 0.0,
        warmup: float = 0.05,
        schedule: str = "cosine",
        optimizer: torch.optim.Optimizer | None = None,
        scheduler: LRScheduler | None = None,
        scheduler_interval: str = "step",
        accumulate: int = 1,
        clip_norm: float | None = None,
        clip_value: float | None = None,
        nonfinite: str = "raise",
        prediction: Mapping[str, Any] | PredictionConfig | None = None,
        callbacks: Sequence[Component | CallbackConfig | Callback] = (),
        metrics: Mapping[str, Any] | None = None,
        batch_adapter: Callable[[Any], Batch] = adapt_batch,
        run_dir: str | Path | None = None,
        checkpoint_every: int | None = None,
        seed: int | None = None,
        precision: str = "32-true",
        accelerator: str = "auto",
        devices: int = 1,
        progress: bool = True,
        fabric: Fabric | None = None,
        registry: Registry | None = None,
    ) -> None:
        registry = registry if registry is not None else Registry.discover()
        check_optimization(
            model, optimizer, scheduler, scheduler_interval, learning_rate=learning_rate, weight_decay=weight_decay
        )
        check_metrics({} if metrics is None else metrics)
        if checkpoint_every is not None and run_dir is None:
            raise ConfigError("needs somewhere to write: set run_dir", path="checkpoint_every")
        if not isinstance(callbacks, list | tuple):
            raise ConfigError(f"must be a list, got {callbacks!r}", path="callbacks")
        own_loss = loss_of(loss)
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
                "scheduler_interval": scheduler_interval,
                "accumulate": accumulate,
                "clip_norm": clip_norm,
                "clip_value": clip_value,
                "nonfinite": nonfinite,
                "checkpoint_every": checkpoint_every,
                "loss": "auto" if own_loss is not None else loss,
                "prediction": attrs.asdict(prediction, recurse=False)
                if isinstance(prediction, PredictionConfig)
                else prediction,
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
        objects = {
            "loss": own_loss,
            "optimizer": optimizer,
            "scheduler": scheduler,
            "metrics": metrics or None,
            "batch_adapter": None if batch_adapter is adapt_batch else batch_adapter,
            "fabric": fabric,
        }
        #: What was given as objects, which no file can say.
        self.given_objects = (
            *(name for name, value in objects.items() if value is not None),
            *(f"callback {type(each).__name__}" for each in own_callbacks),
        )
        #: The whole configuration, where the run was made from one (`runs.build_trainer`).
        self.run_config: RunConfig | None = None
        self.registry = registry
        self.metrics = dict(metrics or {})
        self.callbacks = [*self._default_callbacks(own_callbacks), *self._built_callbacks(), *own_callbacks]
        self._events = Events(self.callbacks)
        self.history = History()
        #: Optimiser steps done; the epoch at hand, from 0; its batches that are done.
        self.step = 0
        self.epoch = 0
        self.batch = 0
        #: Why the run is to end; empty while it is not.
        self.stop_reason = ""
        self._requested = False
        self._running = False
        #: Batches an epoch, where the loader says it; known when training starts.
        self.epoch_length: int | None = None
        #: The step and the epoch since which an epoch has so many: a resumed run may have another batch size.
        self.counted_from = (0, 0)

    def stop(self, reason: str) -> None:
        """End the run after the batch at hand (and, at an epoch's end, its records); for callbacks."""
        self.stop_reason = reason or "a callback stopped it"

    def request_checkpoint(self) -> None:
        """Ask for a checkpoint, written when all callbacks have seen the event at hand; for callbacks.

        With accumulation it waits for the optimiser step.
        """
        self._requested = True

    def take_request(self) -> bool:
        """Whether a checkpoint was asked for since this was last called."""
        requested, self._requested = self._requested, False
        return requested

    def emit(self, event: str, *arguments: Any) -> None:
        """Call every callback that listens to `event`."""
        self._events.emit(event, *arguments)

    @property
    def is_first_rank(self) -> bool:
        """Whether this process is the one that writes files and shows progress."""
        return self._fabric is None or self._fabric.is_global_zero

    @property
    def own_optimizer(self) -> torch.optim.Optimizer | None:
        """The optimiser that was given, if one was."""
        return self._optimizer

    @property
    def own_scheduler(self) -> LRScheduler | None:
        """The scheduler that was given, if one was."""
        return self._scheduler

    @property
    def total_steps(self) -> int | None:
        """Optimiser steps the run will make; None when the loader has no length and `max_steps` is unset."""
        length = loader_length(self.train_loader) if self.epoch_length is None else self.epoch_length
        step, epoch = self.counted_from
        epochs = self.config.max_epochs - epoch
        steps = None if length is None else step + math.ceil(length / self.config.accumulate) * epochs
        known = [limit for limit in (self.config.max_steps, steps) if limit is not None]
        return min(known) if known else None

    def fit(self, *, resume: str | Path | None = None) -> History:
        """Train, and return the history.

        The model is trained in place, in the modes its modules have; only a model that is
        in evaluation mode as a whole is put into training mode.

        `resume` goes on from a checkpoint, in the middle of an epoch too: ``"last"``, ``"best"``,
        or a folder. On a CPU the run ends as if it had never stopped, bit for bit. Where
        `run_dir` has no checkpoint yet, ``"last"`` and ``"best"`` begin at the beginning, so a
        script that always says ``resume="last"`` may be killed and started again.
        Without `resume`, checkpoints that are in `run_dir` already are set aside, not overwritten.

        SIGINT and SIGTERM end the run after the batch at hand, with a checkpoint if there
        is a `run_dir`, by `Interrupted`, a `SystemExit` of 130 or 143.

        Raises `DataError` for an empty loader, `NonFiniteError` for a NaN or infinite loss
        or gradient (before the optimiser sees it), `CheckpointError` where a run cannot go
        on, and what callbacks raise as `CallbackError`.
        """
        if self._running:
            raise MappingError(
                "fit is at work already: a callback ends a run by trainer.stop(reason), and cannot nest one"
            )
        check_loader(self.train_loader, "train_loader", "it has no batch to train on")
        if self.val_loader is not None:
            check_loader(self.val_loader, "val_loader", "pass val_loader=None to train without validation")
        run_dir = self.config.run_dir
        fabric = self.start_fabric()
        check_resume(resume)
        make_folders(run_dir)
        with occupied(run_dir if fabric.is_global_zero else None):
            return self._fit(fabric, resume)

    def _fit(self, fabric: Fabric, resume: str | Path | None) -> History:
        checkpoint = None if resume is None else self._found(resume, fabric)
        state = None if checkpoint is None else read_checkpoint(checkpoint)
        self.stop_reason, self._requested, self.history = "", False, History()
        self.step, self.epoch, self.batch, self.counted_from = 0, 0, 0, (0, 0)
        seed_everything(None if self.config.seed is None else (self.config.seed + fabric.global_rank) % 2**64)
        if self.config.run_dir is not None:
            check_plain({each.state_key: each.state_dict() for each in self.callbacks}, "the state of callback ")
        if not any(module.training for module in all_modules(self.model)):
            self.model.train()
        self._running = True
        with Interruption() as interruption:
            try:
                loop = begin(self, fabric, interruption, checkpoint, state)
                self.emit("on_fit_start", self)
                if state is not None:
                    put_back(loop, state)
                loop.run()
                loop.phases.finish()
                mapped = unwrapped(self.model)
                self.history.file_bytes = mapped.file_bytes() if isinstance(mapped, MappingModel) else None
                self.history.stop_reason = self.stop_reason or f"max_epochs={self.config.max_epochs} reached"
                self.emit("on_fit_end", self)
            except BaseException as error:
                try:
                    self.emit("on_exception", self, error)
                except MappingError as second:  # what ended the run is what the user must see
                    error.add_note(str(second))
                raise
            finally:
                self._running = False
        return self.history

    def validate(self, loader: Iterable[Any] | None = None) -> dict[str, float]:
        """Means over all items of `loader` (by default the validation loader), in evaluation mode, and `metrics`."""
        loader = self.val_loader if loader is None else loader
        if loader is None:
            raise DataError("there is no loader to validate on: pass one, or give the trainer a val_loader")
        return self._evaluate_alone(loader, "validation")

    def test(self, loader: Iterable[Any]) -> dict[str, float]:
        """The same as `validate`, for data that nothing was chosen on."""
        return self._evaluate_alone(loader, "test")

    def predict(self, loader: Iterable[Any]) -> Any:
        """The outputs for all inputs of `loader`, in evaluation mode, on the CPU.

        `loader` yields what training loaders do, or bare inputs; a `batch_adapter` of
        your own gets its batches. Tensors are joined along their first dimension, in the nest that
        the target returns; several ranks each predict all.

        >>> from mapping_core import MappingModel
        >>> trainer = MappingTrainer(MappingModel(nn.Linear(8, 2), 8, "slvt"), [], progress=False)
        >>> trainer.predict([torch.zeros(5, 8), torch.zeros(3, 8)]).shape
        torch.Size([8, 2])
        """
        check_loader(loader, "the loader to predict", "it has no batch")
        fabric = self.start_fabric()
        place(fabric, self.model)
        own = self.batch_adapter is not adapt_batch
        with self._looking_on(loader):
            return predict(
                self.model,
                forward_of(fabric, self.model),
                (placed(fabric, batch) for batch in loader),
                partial(adapted_inputs, self.batch_adapter) if own else inputs_of,
            )

    def evaluate(self, fabric: Fabric, loader: Iterable[Any], what: str) -> dict[str, float]:
        """`validate` on a model that is in its place."""
        set_epoch(loader, 0)
        if fabric.world_size > 1:
            loader = with_own_order(loader, seed=0, rank=fabric.global_rank, world_size=fabric.world_size)
        return evaluate(
            self.model,
            forward_of(fabric, self.model),
            (placed(fabric, batch) for batch in loader),
            adapt=self.batch_adapter,
            loss=self.loss,
            metrics=self.metrics,
            fabric=fabric,
            what=what,
        )

    def _evaluate_alone(self, loader: Iterable[Any], what: str) -> dict[str, float]:
        check_loader(loader, f"the {what} loader", "it has no batch")
        fabric = self.start_fabric()
        place(fabric, self.model)
        place(fabric, self.loss)
        with self._looking_on(loader):
            return self.evaluate(fabric, loader, what)

    def _looking_on(self, loader: Iterable[Any]) -> AbstractContextManager[None]:
        """What a callback looks at while training runs does not change the run."""
        return undisturbed(loader) if self._running else nullcontext()

    def start_fabric(self) -> Fabric:
        """The Fabric of this trainer, made and launched where none was given."""
        if self._fabric is None:
            self._fabric = make_fabric(self.config)
        check_strategy(self._fabric)
        return self._fabric

    def _found(self, resume: str | Path, fabric: Fabric) -> Path | None:
        """The checkpoint to go on from; the first rank looks alone, since looking puts right what a kill left."""
        if not fabric.is_global_zero:
            fabric.barrier()
        try:
            return find_checkpoint(resume, self.config.run_dir)
        finally:
            if fabric.is_global_zero:
                fabric.barrier()

    def _built_callbacks(self) -> list[Callback]:
        context = CallbackContext(run_dir=self.config.run_dir)
        return [each.build(context) for each in self.config.callbacks]

    def _default_callbacks(self, own: Sequence[Callback]) -> list[Callback]:
        context = CallbackContext(run_dir=self.config.run_dir)
        names = (["progress"] if self.config.progress else []) + (
            ["log", "checkpoint"] if self.config.run_dir is not None else []
        )
        given = {each.name for each in self.config.callbacks}
        built = [self.registry.resolve(CallbackConfig, name).build(context) for name in names if name not in given]
        return [each for each in built if not any(isinstance(other, type(each)) for other in own)]
