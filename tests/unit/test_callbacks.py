"""Callbacks: the events they get and in which order, and those that core brings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch import nn

from mapping_core import Callback, CallbackError, ConfigError, DataError, MappingError, MappingModel, MappingTrainer
from mapping_core.builtin.callbacks import EarlyStopping
from mapping_core.training.events import EVENTS, Events
from tests import targets
from tests.targets import trainer_of


class Recorder(Callback):
    """Keeps the name of every event."""

    def __init__(self) -> None:
        self.seen: list[str] = []


for event in EVENTS:
    setattr(Recorder, event, lambda self, trainer, *_, event=event: self.seen.append(event))

EPOCH = [
    "on_epoch_start",
    *["on_batch_start", "on_batch_end"] * 3,
    "on_validation_start",
    "on_validation_end",
    "on_epoch_end",
]


def test_events_in_order(tmp_path: Path) -> None:
    """A run tells its whole story, each event once and in order."""
    recorder = Recorder()
    trainer_of(None, targets.loader(), targets.loader(8), callbacks=[recorder], run_dir=tmp_path).fit()
    first = list(EPOCH)
    first.insert(1, "on_phase_change")
    assert recorder.seen == ["on_fit_start", *first, "on_checkpoint", *EPOCH, "on_checkpoint", "on_fit_end"]


def test_a_run_inside_a_run_is_refused() -> None:
    """A callback that calls `fit` gets an error, and the run it is in is not mixed up; afterwards `fit` works again."""

    class Nests(Callback):
        def on_epoch_end(self, trainer: MappingTrainer, record: Any) -> None:
            trainer.fit()

    trainer = trainer_of(callbacks=[nests := Nests()])
    with pytest.raises(MappingError, match="fit is at work already"):
        trainer.fit()
    trainer.callbacks.remove(nests)
    assert len(trainer_of(trainer.model).fit()) == 2
    assert not trainer._running


def test_looking_on_changes_nothing() -> None:
    """A callback that validates and predicts whenever it can leaves every number of the run as it is."""

    class Looks(Callback):
        def on_batch_end(self, trainer: MappingTrainer, record: Any) -> None:
            trainer.validate()
            trainer.predict(targets.loader(8, shuffle=True))

    def history(*callbacks: Callback) -> Any:
        target = nn.Sequential(targets.mlp(), nn.Dropout(0.5))
        model = MappingModel(target, 16)
        return trainer_of(model, targets.loader(), targets.loader(8, shuffle=True), callbacks=callbacks).fit()

    assert [(r.train, r.validation) for r in history(Looks())] == [(r.train, r.validation) for r in history()]


def test_a_method_that_is_no_event_is_refused() -> None:
    """A name of another framework would never be called, so it is an error that knows a near one."""

    class Foreign(Callback):
        def on_train_batch_end(self, trainer: MappingTrainer, record: Any) -> None: ...

    with pytest.raises(ConfigError, match=r"Foreign\.on_train_batch_end is no event.*did you mean 'on_batch_end'"):
        trainer_of(callbacks=[Foreign()])


def test_a_state_that_cannot_be_taken_back_is_named(tmp_path: Path) -> None:
    """An exception while a callback takes its state back says whose state it is."""

    class Fails(Callback):
        def load_state_dict(self, state: dict[str, Any]) -> None:
            raise KeyError("count")

    trainer_of(callbacks=[Fails()], run_dir=tmp_path).fit()
    with pytest.raises(CallbackError, match=r"callback Fails failed to take its state .* back .*KeyError: 'count'"):
        trainer_of(callbacks=[Fails()], run_dir=tmp_path, max_epochs=3).fit(resume="last")


def test_an_early_stop_holds_over_a_restart(tmp_path: Path) -> None:
    """A run that had stopped does not add an epoch each time it is resumed; with more patience it goes on."""

    def epochs(patience: int, resume: str | None) -> int:
        stopping = EarlyStopping(monitor="train_loss", patience=patience, min_delta=1e9)
        return len(trainer_of(callbacks=[stopping], run_dir=tmp_path, max_epochs=9).fit(resume=resume))

    assert [epochs(2, None), epochs(2, "last"), epochs(2, "last"), epochs(4, "last")] == [3, 3, 3, 5]


def test_an_error_is_an_event() -> None:
    """A run that fails tells its callbacks with the error, and does not say that it ended."""
    recorder = Recorder()
    with pytest.raises(DataError):
        trainer_of(None, iter([targets.rows()]), callbacks=[recorder]).fit()
    assert recorder.seen[-1] == "on_exception"
    assert "on_fit_end" not in recorder.seen


def test_a_callback_that_fails_is_named() -> None:
    """An exception in a callback ends the run with its class and event; our own errors pass as they are."""

    class Fails(Callback):
        def on_batch_end(self, trainer: MappingTrainer, record: Any) -> None:
            raise self.error

        def __init__(self, error: Exception) -> None:
            self.error = error

    with pytest.raises(CallbackError, match="callback Fails failed in on_batch_end: ZeroDivisionError: by nought"):
        trainer_of(callbacks=[Fails(ZeroDivisionError("by nought"))]).fit()
    with pytest.raises(DataError, match=r"^mine$"):
        trainer_of(callbacks=[Fails(DataError("mine"))]).fit()


def test_the_first_error_is_the_one_raised() -> None:
    """A callback that fails over the error that ended the run is a note to it, and does not take its place."""

    class FailsTwice(Callback):
        def on_batch_end(self, trainer: MappingTrainer, record: Any) -> None:
            raise KeyboardInterrupt

        def on_exception(self, trainer: MappingTrainer, error: BaseException) -> None:
            raise OSError("disk full")

    with pytest.raises(KeyboardInterrupt) as caught:
        trainer_of(callbacks=[FailsTwice()]).fit()
    assert caught.value.__notes__ == ["callback FailsTwice failed in on_exception: OSError: disk full"]


@pytest.mark.parametrize(("reason", "kept"), [("enough", "enough"), ("", "a callback stopped it")])
def test_stop(reason: str, kept: str) -> None:
    """`stop` ends the run after the batch at hand, with the epoch's record and the reason."""

    class Stops(Callback):
        def on_batch_end(self, trainer: MappingTrainer, record: Any) -> None:
            if record.step == 4:
                trainer.stop(reason)

    history = trainer_of(None, targets.loader(), targets.loader(8), callbacks=[Stops()], max_epochs=9).fit()
    assert (len(history), history.last.step, history.stop_reason) == (2, 4, kept)
    assert "loss" in history.last.validation


def test_only_overridden_methods_are_called() -> None:
    """An event that nobody overrides has no listener, and unknown things are no callbacks."""
    events = Events([Callback()])
    assert not any(events.listeners.values())
    with pytest.raises(ConfigError, match="callbacks: a callback must be a Callback"):
        Events([print])  # type: ignore[list-item]


def test_two_callbacks_of_one_key() -> None:
    """Two callbacks that would save under one key are refused; two monitors have two keys."""
    with pytest.raises(ConfigError, match="two callbacks have the state_key 'Recorder'"):
        trainer_of(callbacks=[Recorder(), Recorder()])
    trainer_of(callbacks=[EarlyStopping(), EarlyStopping(monitor="train_loss")])
    with pytest.raises(ConfigError, match=r"state_key 'EarlyStopping\(val_loss\)'"):
        trainer_of(callbacks=["early_stopping", EarlyStopping(patience=7)])
