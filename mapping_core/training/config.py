"""`TrainerConfig`: every option of a training run that can stand in a TOML file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from attrs import define, field
from attrs.validators import ge, gt, in_, lt, optional

from mapping_core.components import CallbackConfig, LossConfig, PhasePolicyConfig

PRECISIONS = ("32-true", "64-true", "bf16-mixed", "16-mixed", "bf16-true", "16-true")
SCHEDULES = ("cosine", "constant")
NONFINITE = ("raise", "skip", "rollback")


@define(frozen=True, kw_only=True)
class TrainerConfig:
    """How to train; the same fields as `MappingTrainer`'s keyword arguments.

    `learning_rate=None` means the default for the model: for a mapped model the rule in
    `mapping_core.training.optimization`, which falls with `latent_dim`.
    `seed` seeds torch's, NumPy's and Python's generators when training starts; None leaves
    them alone. `max_steps` counts optimiser steps and ends the run before `max_epochs` does.

    `accumulate` batches make one optimiser step, weighted by their items; at an epoch's end
    fewer do, so that no batch is lost. Gradients are clipped to a norm of `clip_norm`, or each
    number to `clip_value`. `nonfinite` says what a loss or gradient that is NaN or infinite does:
    ``"raise"``, ``"skip"`` its step, or ``"rollback"`` to the state at the last checkpoint or
    epoch's start; the optimiser never sees it. `checkpoint_every` counts optimiser steps.
    `scheduler_interval` is for a scheduler of one's own: after each ``"step"`` or each ``"epoch"``.
    """

    max_epochs: int = field(default=10, validator=ge(1))
    max_steps: int | None = field(default=None, validator=optional(ge(1)))
    learning_rate: float | None = field(default=None, validator=optional(gt(0.0)))
    weight_decay: float = field(default=0.0, validator=ge(0.0))
    warmup: float = field(default=0.05, validator=[ge(0.0), lambda _, a, v: _below_one(a, v)])
    schedule: str = field(default="cosine", validator=in_(SCHEDULES))
    loss: LossConfig | str = "auto"
    phase_policy: PhasePolicyConfig | str = "full"
    callbacks: tuple[CallbackConfig, ...] = ()
    run_dir: Path | None = None
    checkpoint_every: int | None = field(default=None, validator=optional(ge(1)))
    accumulate: int = field(default=1, validator=ge(1))
    clip_norm: float | None = field(default=None, validator=optional(gt(0.0)))
    clip_value: float | None = field(default=None, validator=optional(gt(0.0)))
    nonfinite: str = field(default="raise", validator=in_(NONFINITE))
    scheduler_interval: str = field(default="step", validator=in_(("step", "epoch")))
    seed: int | None = field(default=None, validator=optional([ge(0), lt(2**64)]))
    precision: str = field(default="32-true", validator=in_(PRECISIONS))
    accelerator: str = "auto"
    devices: int = field(default=1, validator=ge(1))
    progress: bool = True


def _below_one(attribute: Any, value: float) -> None:
    if value >= 1.0:
        raise ValueError(f"'{attribute.name}' must be < 1.0: it is the share of steps that warm up, got {value}")
