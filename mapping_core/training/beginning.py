"""The beginning of `fit`: everything moved, made and read, in the order in which one needs the other."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from mapping_core.training.checkpoint import clear_unfinished, set_aside, write_base
from mapping_core.training.engine import loader_length, place, scaler_of
from mapping_core.training.interruption import Interruption
from mapping_core.training.loop import Loop
from mapping_core.training.optimization import default_optimizer, default_schedule
from mapping_core.training.predictive import connect, make_phases
from mapping_core.training.resolved import write_resolved
from mapping_core.training.resumption import check_format, counted_from, take_state
from mapping_core.training.sampling import with_own_order

if TYPE_CHECKING:
    from lightning_fabric import Fabric

    from mapping_core.training.trainer import MappingTrainer


def begin(
    trainer: MappingTrainer,
    fabric: Fabric,
    interruption: Interruption,
    checkpoint: Path | None,
    state: dict[str, Any] | None,
) -> Loop:
    """The loop of a run, at its first batch or at the point where `checkpoint`, with its `state`, left off."""
    config, run_dir = trainer.config, trainer.config.run_dir
    if checkpoint is not None and state is not None:
        check_format(checkpoint, state)
    if run_dir is not None and fabric.is_global_zero:
        clear_unfinished(run_dir)
        if checkpoint is None:
            set_aside(run_dir)
            write_base(run_dir, trainer.model)
            write_resolved(run_dir, trainer)
    place(fabric, trainer.model)
    place(fabric, trainer.loss)
    trainer.optimizer = optimizer = trainer.own_optimizer or default_optimizer(
        trainer.model,
        trainer.loss,
        learning_rate=config.learning_rate,
        weight_decay=config.weight_decay,
        fused=scaler_of(fabric) is None,
    )
    drawn = config.seed if config.seed is not None else int(torch.randint(2**62, ()))
    order_seed = int(fabric.broadcast(drawn if state is None else state["order_seed"]))
    loader = with_own_order(
        trainer.train_loader, seed=order_seed, rank=fabric.global_rank, world_size=fabric.world_size
    )
    trainer.epoch_length = fabric.broadcast(loader_length(loader))
    if state is not None:
        trainer.counted_from = counted_from(state, length=trainer.epoch_length, accumulate=config.accumulate)
    scheduler = trainer.own_scheduler
    if scheduler is None and trainer.own_optimizer is None:
        scheduler = default_schedule(
            optimizer, kind=config.schedule, warmup=config.warmup, total_steps=trainer.total_steps
        )
    phases, selection = make_phases(trainer, fabric, order_seed)
    loop = Loop(
        trainer,
        fabric,
        loader=loader,
        order_seed=order_seed,
        optimizer=optimizer,
        scheduler=scheduler,
        phases=phases,
        selection=selection,
        interruption=interruption,
    )
    connect(loop)
    if checkpoint is not None and state is not None:
        take_state(loop, checkpoint, state)
        if run_dir is not None and fabric.is_global_zero:
            if checkpoint.resolve().parent.parent == run_dir.resolve():
                set_aside(run_dir, after=trainer.step)
            write_resolved(run_dir, trainer)
    return loop
