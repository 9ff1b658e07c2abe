"""The value a callback watches: named early, found late."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mapping_core.errors import ConfigError

if TYPE_CHECKING:
    from mapping_core.training.history import EpochRecord
    from mapping_core.training.trainer import MappingTrainer


def check_monitor(trainer: MappingTrainer, monitor: str, callback: str) -> None:
    """Raise `ConfigError` for a name that no epoch of this run can report, before the first one is trained.

    Which metrics a loss reports is known from the first batch on, so `monitored` looks again.
    """
    kind, _, name = monitor.partition("_")
    if kind == "val" and name and trainer.val_loader is None:
        raise ConfigError(
            f"{callback!r} monitors {monitor!r}, but there is no val_loader: pass one, or monitor 'train_{name}'",
            path="callbacks",
        )
    if kind not in ("train", "val") or not name:
        raise ConfigError(
            f"{callback!r} monitors {monitor!r}, but a run reports 'train_...' and 'val_...', such as 'val_loss'",
            path="callbacks",
        )


def monitored(record: EpochRecord, monitor: str, callback: str) -> float:
    """The value of an epoch by its name; raises `ConfigError` with the names there are."""
    metrics = record.metrics()
    if monitor not in metrics:
        raise ConfigError(
            f"{callback!r} monitors {monitor!r}, but the run reports {', '.join(metrics)}", path="callbacks"
        )
    return metrics[monitor]
