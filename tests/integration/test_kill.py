"""Killed at any moment, a run that is started again ends as if it had never been killed, bit for bit."""

from __future__ import annotations

import functools
import gc
import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from mapping_core import Callback, MappingModel, MappingTrainer, Registry
from tests import targets
from tests.processes import in_a_process

KILLS = 30
#: Batches of an epoch in runs that are killed inside a write.
SHORT = 4
#: What touches the disk while a checkpoint is written.
OPERATIONS = [
    (os, "fsync"),
    (os, "replace"),
    (os, "mkdir"),
    (os, "rmdir"),
    (os, "unlink"),
    (Path, "write_bytes"),
    (Path, "write_text"),
    (shutil, "rmtree"),
]


def trainer(folder: Path, *callbacks: Callback, epoch: int = 10) -> MappingTrainer:
    """Two or three epochs of some batches with dropout and running statistics, and two checkpoints in each."""
    target = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.ReLU(), nn.Linear(8, 3))
    with_seed(target)
    return targets.trainer_of(
        MappingModel(target, 24, "slvt", registry=registry()),
        targets.loader(4 * epoch, batch_size=4, shuffle=True),
        targets.loader(8, batch_size=4),
        max_epochs=2 if epoch == SHORT else 3,
        seed=3,
        run_dir=folder,
        checkpoint_every=epoch // 2,
        registry=registry(),
        callbacks=list(callbacks),
    )


@functools.cache
def registry() -> Registry:
    """Return what is installed, looked up once for all forks."""
    return Registry.discover()


def with_seed(target: nn.Module) -> None:
    """Give a target the same weights in each process."""
    for index, parameter in enumerate(target.parameters()):
        numbers = [((7 * index + 3 * place) % 11 - 5) / 10 for place in range(parameter.numel())]
        parameter.data = parameter.new_tensor(numbers).reshape(parameter.shape)


def ended(made: MappingTrainer) -> str:
    """What must be equal at the end, as text without rounding."""
    state = {name: tensor.tolist() for name, tensor in made.model.state_dict().items()}
    return repr((state, [record.metrics() for record in made.history], made.history.stop_reason))


def forked(work: Callable[[], None]) -> int:
    """Run `work` in a fork of this process, which has imported all it needs; returns the signal that ended it, or 0."""
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException:
            import traceback

            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if os.WIFEXITED(status) and os.WEXITSTATUS(status):
        raise RuntimeError("a run failed")
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0


def run(folder: Path, *, epoch: int = 10, processor_seconds: float = 0.0) -> int:
    """Start a run, or go on with it, in a fork; it dies when it has used so much of the processor, if that is given."""

    def work() -> None:
        signal.setitimer(signal.ITIMER_PROF, processor_seconds)  # whose signal kills, as nobody handles it
        made = trainer(folder, epoch=epoch)
        made.fit(resume="last")
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        folder.joinpath("end.txt").write_text(ended(made))
        folder.joinpath("seconds.txt").write_text(str(time.process_time()))

    return forked(work)


def outcome(folder: Path) -> str:
    """What a run wrote at its end; no half-written thing may lie beside its checkpoints."""
    names = sorted(path.name for path in (folder / "checkpoints").iterdir())
    assert [name for name in names if not name.startswith("step-")] == ["best"]
    assert [path.name for path in folder.glob(".*")] == [".lock"]
    return folder.joinpath("end.txt").read_text()


class KillAt(Callback):
    """Kills the process before the n-th operation on the disk of its first epoch; 0 kills never, and counts."""

    def __init__(self, number: int, counts: Path) -> None:
        self.number, self.counts, self.count, self.watching = number, counts, 0, True

    def on_batch_end(self, trainer: MappingTrainer, record: Any) -> None:
        if record.step == SHORT + 1:  # past a checkpoint inside the epoch, one at its last batch, and that of its end
            self.watching = False
            if self.number == 0:
                self.counts.write_text(str(self.count))

    def counting(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        """The operation with a count of its calls, and death at one of them."""

        def operation(*arguments: Any, **options: Any) -> Any:
            if self.watching:
                self.count += 1
                if self.count == self.number:
                    if isinstance(arguments[-1], bytes):  # half a file
                        plain(arguments[0], arguments[1][: len(arguments[1]) // 2])
                    os.kill(os.getpid(), signal.SIGKILL)
            return plain(*arguments, **options)

        return operation


def killed_inside_a_write(folder: Path, number: int) -> int:
    """A run that dies at the n-th operation on the disk."""

    def work() -> None:
        killer = KillAt(number, folder / "count.txt")
        for place, name in OPERATIONS:
            setattr(place, name, killer.counting(getattr(place, name)))
        trainer(folder, killer, epoch=SHORT).fit(resume="last")

    return forked(work)


def scenarios(folder: Path) -> dict[str, Any]:
    """All kills, from one process that has imported everything and runs nothing itself."""
    registry()
    gc.freeze()
    os.fsync = lambda fd: None  # it waits for the disk, and what a kill ends is a process
    import lightning_fabric  # noqa: F401, for the forks

    found: dict[str, Any] = {"wrong": [], "kills": 0, "runs": 0, "writes": 0}
    run(folder / "whole")
    whole = outcome(folder / "whole")
    draw = random.Random(5)  # noqa: S311, nothing secret
    seconds = float((folder / "whole" / "seconds.txt").read_text())
    place = folder / "0"
    while found["kills"] < KILLS:
        if run(place, processor_seconds=draw.uniform(0.0, seconds)) == signal.SIGPROF:
            found["kills"] += 1
            continue
        found["wrong"] += [place.name] if outcome(place) != whole else []
        found["runs"] += 1
        place = folder / str(found["runs"])
    run(place)
    found["wrong"] += [place.name] if outcome(place) != whole else []

    run(folder / "short", epoch=SHORT)
    short = outcome(folder / "short")
    killed_inside_a_write(folder / "counted", 0)
    found["writes"] = int((folder / "counted" / "count.txt").read_text())
    for number in range(1, found["writes"] + 1):
        place = folder / f"write-{number}"
        assert killed_inside_a_write(place, number) == signal.SIGKILL
        run(place, epoch=SHORT)
        found["wrong"] += [place.name] if outcome(place) != short else []
    return found


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Give what came of all kills."""
    result: dict[str, Any] = in_a_process(
        "tests.integration.test_kill:scenarios", tmp_path_factory.mktemp("kills"), timeout=400.0
    )
    return result


def test_any_moment(found: dict[str, Any]) -> None:
    """Thirty kills spread over whole runs, and one before each operation on the disk of three checkpoints' writing."""
    assert found["wrong"] == []
    assert found["kills"] == KILLS
    assert found["writes"] >= 20
