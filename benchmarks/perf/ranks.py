"""Running a function in two processes that gloo connects.

python -m benchmarks.perf.ranks MODULE:FUNCTION RANK FOLDER [ARGUMENT ...]
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import distributed

RANKS = 2
ROOT = Path(__file__).parents[2]


def on_two_ranks(function: str, folder: Path, *arguments: str, timeout: float = 150.0) -> list[Any]:
    """Call ``module:function`` with the rank and `arguments` in each of two processes; return what they returned.

    That travels as JSON, through files in `folder`. Raises `RuntimeError` with a rank's output if it fails, and
    `subprocess.TimeoutExpired` after `timeout` seconds.
    """
    started = time.monotonic()
    processes = [
        subprocess.Popen(  # noqa: S603, our own interpreter and module
            [sys.executable, "-m", "benchmarks.perf.ranks", function, str(rank), str(folder), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        )
        for rank in range(RANKS)
    ]
    try:
        outputs = [each.communicate(timeout=started + timeout - time.monotonic())[0] for each in processes]
    finally:
        for each in processes:
            each.kill()
    for rank, (process, output) in enumerate(zip(processes, outputs, strict=True)):
        if process.returncode != 0:
            raise RuntimeError(f"rank {rank}: {output}")
    return [json.loads(folder.joinpath(f"{rank}.json").read_text("utf-8")) for rank in range(RANKS)]


def main(function: str, rank: int, folder: Path, *arguments: str) -> None:
    """One rank."""
    torch.set_num_threads(1)
    module, _, name = function.partition(":")
    distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=RANKS)
    try:
        result = getattr(importlib.import_module(module), name)(rank, *arguments)
    finally:
        distributed.destroy_process_group()
    folder.joinpath(f"{rank}.json").write_text(json.dumps(result), "utf-8")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), *sys.argv[4:])
