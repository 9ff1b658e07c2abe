"""Functions run in processes of their own: in one, or in two as `torchrun` starts them."""

from __future__ import annotations

import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

RANKS = 2
ROOT = Path(__file__).parents[1]


def in_a_process(function: str, folder: Path, *arguments: str, timeout: float = 240.0) -> Any:
    """Call ``module:function(folder, *arguments)`` in a new process, and return what it returned."""
    (result,) = _results([_started(function, folder, arguments, {"RANK": "0"})], folder, timeout)
    return result


def start_two_ranks(function: str, folder: Path, *arguments: str) -> list[subprocess.Popen[str]]:
    """Start ``module:function(folder, *arguments)`` on two ranks; what it returns goes to a file in `folder`."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(RANKS),
        "LOCAL_WORLD_SIZE": str(RANKS),
        "TORCHELASTIC_RUN_ID": "tests",
        "GROUP_RANK": "0",
    }
    return [
        _started(function, folder, arguments, {**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank in range(RANKS)
    ]


def _started(
    function: str, folder: Path, arguments: tuple[str, ...], environment: dict[str, str]
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.processes", function, str(folder), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **environment},
    )


def on_two_ranks(function: str, folder: Path, *arguments: str, timeout: float = 240.0) -> list[Any]:
    """Run it to its end, and return what each rank returned; raises what went wrong with a rank's output."""
    return _results(start_two_ranks(function, folder, *arguments), folder, timeout)


def _results(processes: list[subprocess.Popen[str]], folder: Path, timeout: float) -> list[Any]:
    for rank, (code, output) in enumerate(_ends_of(processes, timeout)):
        if code != 0:
            raise RuntimeError(f"process {rank} ended with {code}: {output}")
    return [json.loads(folder.joinpath(f"{rank}.json").read_text("utf-8")) for rank in range(len(processes))]


def _ends_of(processes: list[subprocess.Popen[str]], timeout: float) -> list[tuple[int, str]]:
    """Wait for the end of all; return their exit codes and outputs. One that waits for ever is killed: SIGABRT."""
    deadline = time.monotonic() + timeout
    ended = []
    for process in processes:
        try:
            output, _ = process.communicate(timeout=max(1.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGABRT)  # faulthandler then says where
            output, _ = process.communicate()
        ended.append((process.returncode, output))
    return ended


def main(function: str, folder: Path, *arguments: str) -> None:
    """One rank."""
    import faulthandler

    import torch

    faulthandler.enable()
    torch.set_num_threads(1)
    module, _, name = function.partition(":")
    result = getattr(importlib.import_module(module), name)(folder, *arguments)
    folder.joinpath(f"{os.environ['RANK']}.json").write_text(json.dumps(result), "utf-8")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])
