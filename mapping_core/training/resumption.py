"""What a run goes on from: everything but the model's weights, written down and taken back."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

import mapping_core
from mapping_core.errors import CallbackError, CheckpointError, MappingError
from mapping_core.interfaces.phase_policy import Phase
from mapping_core.training.agreement import gathered
from mapping_core.training.checkpoint import restore_model
from mapping_core.training.divergence import DivergenceLevel, DivergenceReport, DivergenceSignal, RecoveryAction
from mapping_core.training.history import EpochRecord, History, PhaseRecord
from mapping_core.training.optimization import load_under_options
from mapping_core.training.randomness import random_state, set_random_state

if TYPE_CHECKING:
    from mapping_core.training.loop import Loop

#: Of what a checkpoint's state is made; raised when older readers would misread it.
STATE_FORMAT = 3


def run_state(loop: Loop, *, epoch: int, batch: int) -> dict[str, Any]:
    """Everything but the model's weights that the run goes on from, at `batch` of `epoch`."""
    trainer = loop.trainer
    own = {
        "random": random_state(loop.loader),
        "epoch_random": loop.epoch_random,
        "averages": loop.averages.state_dict(),
        "batch": batch,
        "length": loop.length,
        "buffers": loop.buffers.own(loop.fabric),
    }
    return {
        "format": STATE_FORMAT,
        "version": mapping_core.__version__,
        "epoch": epoch,
        "step": trainer.step,
        "order_seed": loop.order_seed,
        "accumulate": loop.trainer.config.accumulate,
        "counted_from": trainer.counted_from,
        "ranks": gathered(loop.fabric, own),
        "optimizer_type": _type_name(loop.optimizer),
        "scheduler_type": _type_name(loop.scheduler),
        **loop.training_state(),
        "phases": loop.phases.state_dict(),
        "prediction": None if loop.predictor is None else loop.predictor.state_dict(),
        "recovery": None if loop.recovery is None else loop.recovery.state_dict(),
        "rate_factor": loop.rate_factor,
        "history": {
            "epochs": [attrs.asdict(record) for record in trainer.history.epochs],
            "phases": [(record.step, record.phase.value) for record in trainer.history.phases],
            "recoveries": [_report_state(report) for report in trainer.history.recoveries],
        },
        "callbacks": {callback.state_key: callback.state_dict() for callback in trainer.callbacks},
    }


def take_state(loop: Loop, checkpoint: Path, state: dict[str, Any]) -> None:
    """Go on from a checkpoint and its state, but for what is put back last (`put_back`)."""
    trainer = loop.trainer
    _check_state(loop, checkpoint, state)
    restore_model(checkpoint, trainer.model)
    rank = state["ranks"][min(loop.fabric.global_rank, len(state["ranks"]) - 1)]
    loop.buffers.load(rank["buffers"])
    load = partial(loop.load_training_state, state)
    if trainer.own_optimizer is None:
        load_under_options(loop.optimizer, loop.scheduler, load, multiplied=state["rate_factor"])
    else:
        load()
    loop.rate_factor = state["rate_factor"]
    loop.phases.load_state_dict(state["phases"])
    if loop.predictor is not None and state["prediction"] is not None:
        loop.predictor.load_state_dict(state["prediction"])
    if loop.recovery is not None and state["recovery"] is not None:
        loop.recovery.load_state_dict(state["recovery"])
    trainer.epoch, trainer.step, trainer.batch = state["epoch"], state["step"], rank["batch"]
    trainer.history = History(
        epochs=[EpochRecord(**record) for record in state["history"]["epochs"]],
        phases=[PhaseRecord(step=step, phase=Phase(value)) for step, value in state["history"]["phases"]],
        outcomes=loop.phases.outcomes,
        recoveries=[_report(each) for each in state["history"]["recoveries"]],
    )
    if trainer.batch:
        loop.goes_on = True
        loop.averages.load_state_dict(rank["averages"], loop.fabric.device)
        loop.epoch_random = rank["epoch_random"]
        loop.refusals.keep()


def check_format(checkpoint: Path, state: dict[str, Any]) -> None:
    """Raise `CheckpointError` for a state of another form."""
    if state.get("format") != STATE_FORMAT:
        raise CheckpointError(
            f"{checkpoint}: was written by mapping-core {state.get('version')}, in a form this version cannot read"
        )


def counted_from(state: dict[str, Any], *, length: int | None, accumulate: int) -> tuple[int, int]:
    """The step and the epoch since which epochs have as many steps as now: a checkpoint's own, if that changes.

    >>> state = {"ranks": [{"length": 6}], "accumulate": 1, "step": 12, "epoch": 2}
    >>> counted_from(state, length=6, accumulate=1), counted_from(state, length=3, accumulate=1)
    ((0, 0), (12, 2))
    """
    if (state["ranks"][0]["length"], state["accumulate"]) == (length, accumulate):
        return tuple(state.get("counted_from", (0, 0)))
    return state["step"], state["epoch"]


def _check_state(loop: Loop, checkpoint: Path, state: dict[str, Any]) -> None:
    for name, own in (("optimizer_type", loop.optimizer), ("scheduler_type", loop.scheduler)):
        then, now = state[name], _type_name(own)
        if then != now and now is not None and then is not None:
            raise CheckpointError(f"{checkpoint}: was written with {then}, this run has {now}")
    sizes, own_sizes = (
        [len(group["params"]) for group in groups]
        for groups in (state["optimizer"]["param_groups"], loop.optimizer.param_groups)
    )
    if sizes != own_sizes:
        raise CheckpointError(
            f"{checkpoint}: its {state['optimizer_type']} held {sizes} parameters in its groups, this run's has "
            f"{own_sizes}: make it of the same"
        )
    if differing := sorted(set(state["loss"]) ^ set(loop.trainer.loss.state_dict())):
        raise CheckpointError(f"{checkpoint}: this run's loss is another one, they differ in {', '.join(differing)}")
    ranks = state["ranks"]
    if not any(rank["batch"] for rank in ranks):
        return
    present: dict[str, Any] = {"ranks": loop.fabric.world_size, "accumulate": loop.trainer.config.accumulate}
    then = {"ranks": len(ranks), "accumulate": state["accumulate"]}
    if present["ranks"] == then["ranks"]:
        present["batches an epoch"] = loop.length
        then["batches an epoch"] = ranks[loop.fabric.global_rank]["length"]
    if changed := [f"{name} {then[name]} -> {present[name]}" for name in present if then[name] != present[name]]:
        raise CheckpointError(
            f"{checkpoint}: lies inside an epoch, which cannot go on with other settings ({', '.join(changed)}): "
            "resume from an epoch's end, or as the run was"
        )


def _report_state(report: DivergenceReport) -> dict[str, Any]:
    signals = {signal.value: int(level) for signal, level in report.signals.items()}
    return {"step": report.step, "signals": signals, "action": report.action.value}


def _report(state: dict[str, Any]) -> DivergenceReport:
    signals = {DivergenceSignal(name): DivergenceLevel(level) for name, level in state["signals"].items()}
    return DivergenceReport(step=state["step"], signals=signals, action=RecoveryAction(state["action"]))


def _type_name(made: Any) -> str | None:
    return None if made is None else type(made).__name__


def put_back(loop: Loop, state: dict[str, Any]) -> None:
    """The callbacks' states and the random state, when everything that could touch them has been made."""
    for callback in loop.trainer.callbacks:
        if callback.state_key in state["callbacks"]:
            try:
                callback.load_state_dict(state["callbacks"][callback.state_key])
            except MappingError:
                raise
            except Exception as error:
                raise CallbackError(
                    f"callback {type(callback).__name__} failed to take its state {callback.state_key!r} back from the "
                    f"checkpoint: {type(error).__name__}: {error}"
                ) from error
    if loop.fabric.global_rank < len(state["ranks"]):  # a rank more than there were draws what no other does
        set_random_state(state["ranks"][loop.fabric.global_rank]["random"], loop.loader)
