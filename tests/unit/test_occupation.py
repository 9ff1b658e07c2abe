"""Two runs in one `run_dir`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mapping_core import Callback, CheckpointError, MappingTrainer
from mapping_core.training.occupation import occupied
from tests.targets import trainer_of


class Starts(Callback):
    """Begins another run in the same folder."""

    def on_epoch_end(self, trainer: MappingTrainer, record: Any) -> None:
        trainer_of(run_dir=trainer.config.run_dir).fit(resume="last")


def test_a_second_run_of_this_process_is_refused(tmp_path: Path) -> None:
    """Another trainer gets an error while the folder is in use, and the folder afterwards."""
    with pytest.raises(CheckpointError, match="another run is at work in it"):
        trainer_of(callbacks=[Starts()], run_dir=tmp_path).fit()
    assert len(trainer_of(run_dir=tmp_path).fit(resume="last")) == 2


def test_a_run_of_another_process_is_refused_until_it_is_killed(tmp_path: Path) -> None:
    """The lock of another process is seen, and ends with that process, even when it is killed."""
    script = (
        "import pathlib, sys, time; from mapping_core.training.occupation import occupied\n"
        "with occupied(pathlib.Path(sys.argv[1])): print('in', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"in\n"
        with pytest.raises(CheckpointError, match="another run is at work in it"), occupied(tmp_path):
            pass
        other.kill()
        other.wait()
        with occupied(tmp_path):
            pass
