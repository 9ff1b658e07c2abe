"""A trainer's arguments, checked before anything is trained."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from mapping_core.errors import ConfigError, DataError, TargetError
from mapping_core.training.engine import loader_length


def make_folders(run_dir: Path | None) -> None:
    """Make a run's folders now: a place that cannot be written to must not end a run that is done."""
    if run_dir is None:
        return
    try:
        (run_dir / "checkpoints").mkdir(parents=True, exist_ok=True)
        for folder in (run_dir, run_dir / "checkpoints"):
            with tempfile.TemporaryFile(dir=folder):  # the permission bits do not say it of every file system
                pass
    except OSError as error:
        raise ConfigError(
            f"{run_dir} cannot be made and written to: {error.strerror or error}", path="run_dir"
        ) from error


def check_loader(loader: Any, name: str, empty: str) -> None:
    """Raise `DataError` for what is no loader, and for one that says it has no batch.

    A tensor can be iterated too, but gives samples, and a network would take each for a batch. So does a data set.
    """
    if not hasattr(loader, "__iter__") or isinstance(loader, Tensor):
        raise DataError(
            f"{name} must be an iterable of batches, got {type(loader).__name__}: pass a DataLoader or a list"
        )
    if loader_length(loader) == 0:
        raise DataError(f"{name} is empty: {empty}")


def check_optimization(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None,
    scheduler: LRScheduler | None,
    interval: str,
    **options: float | None,
) -> None:
    """Hold model, optimizer and scheduler to what the loop does with them, and to each other.

    `options` are those of the trainer's own optimizer, which would not be used beside another.
    """
    if not isinstance(model, nn.Module):
        raise TargetError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    if optimizer is None:
        if scheduler is not None:
            raise ConfigError("needs the optimizer it belongs to: pass both", path="scheduler")
        return
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ConfigError(f"must be a torch.optim.Optimizer, got {optimizer!r}", path="optimizer")
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ConfigError(
            "LBFGS evaluates the loss several times a step, which this trainer does not", path="optimizer"
        )
    if given := [name for name, value in options.items() if value]:
        raise ConfigError("is for the optimizer the trainer makes: set it in your own", path=given[0])
    own = {id(parameter) for parameter in model.parameters()}
    if not any(id(parameter) in own for group in optimizer.param_groups for parameter in group["params"]):
        raise ConfigError(
            f"holds no parameter of this {type(model).__name__}: make it of model.parameters()", path="optimizer"
        )
    if isinstance(scheduler, ReduceLROnPlateau) and interval != "epoch":
        raise ConfigError(
            "ReduceLROnPlateau steps on the validation loss of an epoch: set scheduler_interval='epoch'",
            path="scheduler",
        )
    if scheduler is not None and getattr(scheduler, "optimizer", optimizer) is not optimizer:
        raise ConfigError("belongs to another optimizer: make it of the one that is passed", path="scheduler")
