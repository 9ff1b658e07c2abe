"""Checks of callbacks: observers of training."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from mapping_core.components import CallbackConfig
from mapping_core.contexts import CallbackContext
from mapping_core.errors import CallbackError, ConfigError
from mapping_core.interfaces.callback import Callback
from mapping_core.testing.common import registry_of
from mapping_core.testing.contract import Check, contract, expect
from mapping_core.testing.models import model_of
from mapping_core.testing.observing import equal
from mapping_core.testing.worlds import ModelWorld
from mapping_core.training.events import Events
from mapping_core.training.history import History, StepRecord
from mapping_core.training.trainer import MappingTrainer


def build(component: CallbackConfig, folder: str | Path) -> Callback:
    """Build a callback of a run that may write to a folder."""
    return component.build(CallbackContext(run_dir=Path(folder)))


def run(
    component: CallbackConfig,
    callback: Callback,
    world: ModelWorld,
    folder: str | Path,
    *more: Callback,
    resume: str | None = None,
    **options: Any,
) -> History:
    """A run of three epochs, of four steps and a validation each, with this callback and `more`."""
    batches = [tuple(part[i : i + 8] for part in world.batch(32)) for i in range(0, 32, 8)]
    trainer = MappingTrainer(
        model_of(world),
        batches,
        batches[:1],
        callbacks=[callback, *more],
        run_dir=folder,
        accelerator="cpu",
        progress=False,
        seed=world.seed,
        registry=registry_of(component),
        max_epochs=3,
        **options,
    )
    return trainer.fit(resume=resume)


@contract("return a Callback from build(); name its methods as the events are named")
def builds(component: CallbackConfig, world: ModelWorld) -> None:
    """`build(context)` returns a `Callback` whose `on_` methods are events of the trainer."""
    with tempfile.TemporaryDirectory() as folder:
        callback = build(component, folder)
        expect(isinstance(callback, Callback), f"build() returned {type(callback).__name__}")
        Events([callback])


@contract('raise ConfigError("needs somewhere to write: set run_dir") in build() where context.run_dir is None')
def does_without_a_folder(component: CallbackConfig, world: ModelWorld) -> None:
    """Without a `run_dir` it is built and writes nothing, or refused with a `ConfigError` that says so."""
    try:
        component.build(CallbackContext(run_dir=None))
    except ConfigError as error:
        expect("run_dir" in str(error), f"the error does not name run_dir: {error}")


@contract("write files when training starts, not in build(): a trainer that is made writes nothing")
def writes_nothing_when_built(component: CallbackConfig, world: ModelWorld) -> None:
    """Building it writes nothing."""
    with tempfile.TemporaryDirectory() as folder:
        build(component, folder)
        written = [path.name for path in Path(folder).iterdir()]
    expect(not written, f"build() writes {', '.join(written)}")


@contract("return a name from state_key that does not depend on the object: by default the class's")
def state_key_is_stable(component: CallbackConfig, world: ModelWorld) -> None:
    """Its state is saved under a name that another process gives it too."""
    with tempfile.TemporaryDirectory() as folder:
        callbacks = [build(component, folder) for _ in range(2)]
        keys = [each.state_key for each in callbacks]
    expect(all(isinstance(key, str) and key for key in keys), f"the state_key is {keys[0]!r}")
    expect(keys[0] == keys[1], f"two of it have the state_keys {keys[0]!r} and {keys[1]!r}")


@contract("observe: take what the events give, and raise only a MappingError that says what to change")
def sees_a_run(component: CallbackConfig, world: ModelWorld) -> None:
    """A run of three epochs with validation goes through."""
    with tempfile.TemporaryDirectory() as folder:
        history = run(component, build(component, folder), world, folder)
    expect(len(history) >= 1, "the run has no epoch")


@contract("return plain values and tensors from state_dict(), all that it counts, and take them in load_state_dict")
def goes_on_with_a_run(component: CallbackConfig, world: ModelWorld) -> None:
    """A run that broke off inside an epoch goes on with a new one of it, which ends in the state it would have had."""
    with tempfile.TemporaryDirectory() as whole, tempfile.TemporaryDirectory() as parts:
        callback, broken, second = build(component, whole), build(component, parts), build(component, parts)
        run(component, callback, world, whole, checkpoint_every=3)
        try:
            run(component, broken, world, parts, Failing(), checkpoint_every=3)
        except CallbackError as error:
            expect(isinstance(error.__cause__, _Broken), f"the run failed: {error}")
        run(component, second, world, parts, checkpoint_every=3, resume="last")
        state = callback.state_dict()
        expect(equal(second.state_dict(), state), "after a run that went on its state is another")


class _Broken(Exception):
    """How the run breaks off."""


class Failing(Callback):
    """Breaks a run off in its second epoch, at the fifth batch."""

    def __init__(self) -> None:
        self.batches = 0

    def on_batch_end(self, trainer: MappingTrainer, record: StepRecord) -> None:
        self.batches += 1
        if self.batches == 5:
            raise _Broken


#: What is checked of a callback, beside `common.CHECKS`.
CHECKS: tuple[Check[Any, Any], ...] = (
    builds,
    does_without_a_folder,
    writes_nothing_when_built,
    state_key_is_stable,
    sees_a_run,
    goes_on_with_a_run,
)
