"""Signals: the first is noted, handlers come back, and what others set is respected."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mapping_core import Callback, CallbackError, MappingModel, MappingTrainer
from mapping_core.training.checkpoint import checkpoints_in
from mapping_core.training.interruption import Interrupted, Interruption
from tests import targets

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    """Leave the handlers as they were."""
    before = [signal.getsignal(each) for each in SIGNALS]
    yield
    assert [signal.getsignal(each) for each in SIGNALS] == before


@pytest.mark.parametrize("signum", SIGNALS)
def test_the_first_is_noted(signum: signal.Signals) -> None:
    """A signal inside is noted and does nothing else."""
    with Interruption() as interruption:
        assert interruption.signum == 0
        signal.raise_signal(signum)
        assert interruption.signum == signum
    error = Interrupted(signum)
    assert (error.code, str(error)) == (128 + signum, f"training was ended by {signum.name}")


def test_a_signal_that_is_ignored_stays_so() -> None:
    """As under `nohup`: what the process ignores is not heard."""
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Interruption() as interruption:
            signal.raise_signal(signal.SIGINT)
            assert interruption.signum == 0
    finally:
        signal.signal(signal.SIGINT, previous)


def test_in_another_thread() -> None:
    """Training in a thread works, and leaves the handlers to the main one."""
    made: list[Any] = []
    thread = threading.Thread(target=lambda: made.append(targets.trainer_of().fit()))
    thread.start()
    thread.join()
    assert len(made[0]) == 2


class At(Callback):
    """Raises a signal at one of a run's events."""

    def __init__(self, event: str, signum: int = signal.SIGINT) -> None:
        self.event, self.signum, self.checkpoints = event, signum, 0

    def _maybe(self, event: str) -> None:
        if event == self.event:
            self.event = ""
            signal.raise_signal(self.signum)

    def on_fit_start(self, trainer: MappingTrainer) -> None:
        self._maybe("fit_start")

    def on_batch_start(self, trainer: MappingTrainer, batch: Any) -> None:
        if trainer.batch == 1:
            self._maybe("batch_start")

    def on_batch_end(self, trainer: MappingTrainer, record: Any) -> None:
        if trainer.batch == 3:
            self._maybe("last_batch")

    def on_validation_start(self, trainer: MappingTrainer) -> None:
        self._maybe("validation")

    def on_epoch_end(self, trainer: MappingTrainer, record: Any) -> None:
        self._maybe("epoch_end")

    def on_checkpoint(self, trainer: MappingTrainer, path: Path) -> None:
        self.checkpoints += 1


def run(folder: Path | None, *callbacks: Callback, **options: Any) -> MappingTrainer:
    """Return a run of two epochs of three batches."""
    model = MappingModel(targets.mlp(), 16)
    return targets.trainer_of(model, None, targets.loader(10), run_dir=folder, callbacks=list(callbacks), **options)


@pytest.mark.parametrize(
    ("event", "step"), [("fit_start", 1), ("batch_start", 2), ("last_batch", 3), ("validation", 3), ("epoch_end", 3)]
)
@pytest.mark.parametrize("signum", SIGNALS)
def test_one_checkpoint_wherever_it_comes(event: str, step: int, signum: int, tmp_path: Path) -> None:
    """The batch at hand is ended, one checkpoint written, the code is the signal's, and the run goes on from there."""
    watch = At(event, signum)
    with pytest.raises(SystemExit) as ended:
        run(tmp_path, watch).fit()
    assert ended.value.code == 128 + signum
    assert watch.checkpoints == 1
    assert [path.name for path in checkpoints_in(tmp_path)] == [f"step-{step:08d}"]
    resumed, whole = run(tmp_path), run(None)
    assert resumed.fit(resume="last")["val_loss"] == whole.fit()["val_loss"]
    assert targets.latent_of(resumed).equal(targets.latent_of(whole))


def test_it_waits_for_the_accumulated_step(tmp_path: Path) -> None:
    """Inside a window the signal waits for its step, so that no batch is counted whose gradient is lost."""
    with pytest.raises(Interrupted):
        run(tmp_path, At("batch_start"), accumulate=3).fit()
    assert [path.name for path in checkpoints_in(tmp_path)] == ["step-00000001"]


def test_without_a_folder() -> None:
    """Without run_dir the run ends as well, and writes nothing."""
    with pytest.raises(Interrupted, match="training was ended by SIGINT"):
        run(None, At("batch_start")).fit()


def test_callbacks_learn_of_it(tmp_path: Path) -> None:
    """`on_exception` is told, and a callback that fails over it does not change how the run ends."""

    class Fails(Callback):
        def on_exception(self, trainer: MappingTrainer, error: BaseException) -> None:
            raise RuntimeError(f"told of {type(error).__name__}")

    with pytest.raises(Interrupted) as ended:
        run(tmp_path, At("batch_start"), Fails()).fit()
    assert ended.value.__notes__ == ["callback Fails failed in on_exception: RuntimeError: told of Interrupted"]
    assert not isinstance(ended.value, CallbackError)
