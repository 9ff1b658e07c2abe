"""The beginning of a predictive run: its policy, what selects samples, and what makes jumps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mapping_core.components import DynamicsConfig, PhasePolicyConfig
from mapping_core.contexts import DynamicsContext, PhasePolicyContext
from mapping_core.errors import ConfigError
from mapping_core.interfaces.phase_policy import JumpOutcome
from mapping_core.training.engine import forward_of, trainable_parameters
from mapping_core.training.phases import PhaseRunner
from mapping_core.training.prediction import Predictor
from mapping_core.training.probes import ProbeBatches
from mapping_core.training.recovery import Recovery
from mapping_core.training.selection import Selection
from mapping_core.training.trajectory import Trajectory

if TYPE_CHECKING:
    from lightning_fabric import Fabric

    from mapping_core.training.loop import Loop
    from mapping_core.training.trainer import MappingTrainer


def make_phases(trainer: MappingTrainer, fabric: Fabric, order_seed: int) -> tuple[PhaseRunner, Selection | None]:
    """The policy at work, and what selects samples for it; an ordinary run has the policy `full` and selects none."""
    prediction = trainer.config.prediction
    policy = trainer.registry.resolve(PhasePolicyConfig, "full" if prediction is None else prediction.policy)
    runner = PhaseRunner(
        policy.build(PhasePolicyContext(total_steps=trainer.total_steps, seed=trainer.config.seed or 0)),
        name=policy.name,
        total_steps=trainer.total_steps,
        broadcast=fabric.broadcast,
    )
    if prediction is None:
        return runner, None
    forward = forward_of(fabric, trainer.model)
    return runner, Selection(trainer, forward, seed=order_seed, rank=fabric.global_rank)


def connect(loop: Loop) -> None:
    """Give the phases of a loop what they act on."""
    trainer, prediction = loop.trainer, loop.trainer.config.prediction
    loop.phases.announce = loop.announce
    trainer.history.outcomes = loop.phases.outcomes
    if prediction is None:
        return
    if prediction.monitor is not None:
        loop.recovery = Recovery(loop, prediction.monitor)
    if prediction.dynamics is None:
        loop.phases.jump = _refuse
        return
    own = {id(parameter) for parameter in trainer.model.parameters()}
    trained = trainable_parameters(trainer.model, trainer.loss, loop.optimizer)
    trajectory = Trajectory([parameter for parameter in trained if id(parameter) in own])
    dynamics = trainer.registry.resolve(DynamicsConfig, prediction.dynamics)
    context = DynamicsContext(size=trajectory.size, seed=trainer.config.seed or 0)
    source = ProbeBatches(
        trainer.train_loader,
        seed=loop.order_seed,
        rank=loop.fabric.global_rank,
        world_size=loop.fabric.world_size,
    )
    loop.predictor = Predictor(
        loop,
        prediction,
        dynamics=dynamics.build(context),
        trajectory=trajectory,
        source=source,
        batch_size=getattr(trainer.train_loader, "batch_size", None),
    )
    loop.phases.jump, loop.phases.measurement = loop.predictor.jump, loop.predictor.correction


def _refuse(horizons: tuple[int, ...]) -> JumpOutcome:
    raise ConfigError(
        "the phase policy asks for a jump, and nothing proposes one: name a model", path="prediction.dynamics"
    )
