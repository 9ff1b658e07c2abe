"""D27: Ctrl-C. Source: Lightning issue 2035 (no checkpoint, exit code 0, workers left behind)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from mapping_core import MappingModel
from mapping_core.training.checkpoint import checkpoints_in, step_of
from tests import targets
from tests.processes import ROOT

#: Says "ready" in the third batch, and then takes its time over every batch.
SCRIPT = """
import sys, time
from mapping_core import Callback, MappingModel, MappingTrainer
from torch.utils.data import DataLoader
from tests import targets

class Slow(Callback):
    def on_batch_end(self, trainer, record):
        if record.step == 3:
            print("ready", flush=True)
        if record.step >= 3:
            end = time.monotonic() + float(sys.argv[3])
            while time.monotonic() < end:
                time.sleep(0.01)

loader = DataLoader(targets.loader(4000).dataset, batch_size=4, num_workers=int(sys.argv[2]))
model = MappingModel(targets.mlp(), 16)
targets.trainer_of(model, loader, run_dir=sys.argv[1], callbacks=[Slow()]).fit()
"""

#: Runs by name: workers, seconds a batch takes, the signals, to the whole group (as a terminal does) or to the process
#: alone, and the exit code.
RUNS: dict[str, tuple[int, float, tuple[int, ...], bool, int]] = {
    "SIGINT": (0, 0.2, (signal.SIGINT,), False, 130),
    "SIGINT and workers": (2, 0.2, (signal.SIGINT,), True, 130),
    "SIGTERM and workers": (1, 0.2, (signal.SIGTERM,), False, 143),
    "twice": (2, 300.0, (signal.SIGINT, signal.SIGINT), True, 130),
}


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, int, str, int]]:
    """Start all runs at once and signal each; give its folder, exit code, output, and its group's id."""
    folders = {name: tmp_path_factory.mktemp("run") for name in RUNS}
    processes = {
        name: subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(folders[name]), str(workers), str(seconds)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
            start_new_session=True,
        )
        for name, (workers, seconds, *_) in RUNS.items()
    }
    found = {}
    try:
        for name, process in processes.items():
            _, _, signals, whole_group, _ = RUNS[name]
            assert process.stdout is not None
            lines = [line for line in iter(process.stdout.readline, "ready\n") if line]
            for number, signum in enumerate(signals):
                if number:
                    time.sleep(0.5)  # signals that come together are one
                (os.killpg if whole_group else os.kill)(process.pid, signum)
            output, _ = process.communicate(timeout=60.0)
            found[name] = (folders[name], process.returncode, "".join(lines) + output, process.pid)
    finally:
        for process in processes.values():
            process.kill()
    return found


@pytest.mark.parametrize("name", list(RUNS))
def test_exit(name: str, ended: dict[str, tuple[Path, int, str, int]]) -> None:
    """The exit code is 128 + the signal's number, without a traceback, and no process is left."""
    _, code, output, group = ended[name]
    assert code == RUNS[name][-1], output
    assert "Traceback" not in output
    deadline = time.monotonic() + 20.0
    while time.monotonic() < deadline:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return
        time.sleep(0.1)
    pytest.fail("processes are left")


@pytest.mark.parametrize("name", [name for name in RUNS if name != "twice"])
def test_one_checkpoint(name: str, ended: dict[str, tuple[Path, int, str, int]]) -> None:
    """One checkpoint is written, and the run goes on from it."""
    folder, *_ = ended[name]
    (checkpoint,) = checkpoints_in(folder)
    step = step_of(checkpoint)
    assert step >= 3
    log = (folder / "log.jsonl").read_text()
    assert log.count('"event": "checkpoint"') == 1
    loader = torch.utils.data.DataLoader(targets.loader(4000).dataset, batch_size=4)
    made = targets.trainer_of(MappingModel(targets.mlp(), 16), loader, run_dir=folder, max_steps=step + 3)
    made.fit(resume="last")
    assert made.step == step + 3


def test_a_second_signal_ends_at_once(ended: dict[str, tuple[Path, int, str, int]]) -> None:
    """In a batch of five minutes a second signal ends the process, without a checkpoint."""
    folder, *_ = ended["twice"]
    assert checkpoints_in(folder) == []
