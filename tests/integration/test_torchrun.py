"""The real `torchrun`, on the CPU: a script needs no option for it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mapping_core import ConfigError
from tests.targets import trainer_of

SCRIPT = """
import json, os
from tests.targets import trainer_of

trainer = trainer_of(run_dir="run")
history = trainer.fit(resume="last")
with open(f"{os.environ['RANK']}.json", "w") as file:
    json.dump({"ranks": trainer.start_fabric().world_size, "steps": trainer.step, "loss": history["train_loss"]}, file)
"""


def test_a_script_under_torchrun(tmp_path: Path) -> None:
    """Two processes train together, as one that makes the same steps of doubled batches, and write one run."""
    (tmp_path / "script.py").write_text(SCRIPT, encoding="utf-8")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "script.py"]
    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240)
    assert ended.returncode == 0, ended.stderr
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text(encoding="utf-8")) for rank in (0, 1))
    assert first == second
    assert first["ranks"] == 2
    alone = trainer_of()
    alone.fit()
    assert (alone.step, first["steps"]) == (6, 4)  # epochs of 3 batches, or of 2 that are twice as large
    assert len(list((tmp_path / "run" / "checkpoints").glob("step-*"))) == 2


def test_another_number_of_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """A number of devices that torchrun did not start is an error, not a run that waits for the others."""
    for name, value in {"TORCHELASTIC_RUN_ID": "x", "LOCAL_WORLD_SIZE": "2", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match="devices: is 4, but torchrun started 2 processes on this machine"):
        trainer_of(devices=4).fit()
