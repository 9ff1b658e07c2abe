"""`TrainerConfig`: every option of a training run that can stand in a TOML file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from attrs import define, field
from attrs.validators import ge, gt, in_, lt, optional

from mapping_core.components import CallbackConfig, DynamicsConfig, LossConfig, PhasePolicyConfig
from mapping_core.training.divergence import Thresholds

PRECISIONS = ("32-true", "64-true", "bf16-mixed", "16-mixed", "bf16-true", "16-true")
SCHEDULES = ("cosine", "constant")
NONFINITE = ("raise", "skip", "rollback")


@define(frozen=True, kw_only=True)
class GuardConfig:
    """When a proposed jump is kept, and what finding that out may cost.

    A proposal is chosen on one probe of `samples` training samples and judged on another: the mean of the
    differences of their losses, plus `deviations` of its standard errors, must be at most `tau`. What accepted
    jumps have for bounds above 0 sums up to at most `risk`. Probes take at most `share` of the compute of the steps
    made so far. After a rejection nothing is tried for `wait` steps, after another one for twice as many.
    Losses are compared around the exponential average of what trains, with decay `average`.
    """

    samples: int = field(default=1024, validator=ge(8))
    deviations: float = field(default=2.0, validator=ge(0.0))
    tau: float = field(default=0.0, validator=ge(0.0))
    risk: float = field(default=0.0, validator=ge(0.0))
    share: float = field(default=0.05, validator=[ge(0.0), lt(1.0)])
    wait: int = field(default=40, validator=ge(0))
    average: float = field(default=0.95, validator=[ge(0.0), lt(1.0)])


@define(frozen=True, kw_only=True)
class PredictionConfig:
    """Predictive training: a phase policy, and what its jumps need.

    `dynamics` proposes jumps; without it a policy may ask for none. An accepted one multiplies the learning rate
    by `rate_factor`: that a jump lowers the loss says that the rate is too low. With a `monitor` the run
    watches itself for divergence, by these thresholds, and acts (`docs/prediction.md`); it then decides of losses and
    gradients that are not finite too, in the place of `nonfinite`.
    """

    policy: PhasePolicyConfig | str = "fixed"
    dynamics: DynamicsConfig | str | None = None
    guard: GuardConfig = field(factory=GuardConfig)
    rate_factor: float = field(default=1.0, validator=gt(0.0))
    monitor: Thresholds | None = None


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
    `prediction` makes training predictive; without it every step is an ordinary one.
    `scheduler_interval` is for a scheduler of one's own: after each ``"step"`` or each ``"epoch"``.
    """

    max_epochs: int = field(default=10, validator=ge(1))
    max_steps: int | None = field(default=None, validator=optional(ge(1)))
    learning_rate: float | None = field(default=None, validator=optional(gt(0.0)))
    weight_decay: float = field(default=0.0, validator=ge(0.0))
    warmup: float = field(default=0.05, validator=[ge(0.0), lambda _, a, v: _below_one(a, v)])
    schedule: str = field(default="cosine", validator=in_(SCHEDULES))
    loss: LossConfig | str = "auto"
    prediction: PredictionConfig | None = None
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
