"""What it costs to import mapping_core, which is without torch, and to find the installed plugins."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys

from benchmarks.perf.measuring import Row

_CODE = """
import json, sys, time
started = time.perf_counter()
import mapping_core
imported = time.perf_counter()
mapping_core.Registry.discover()
found = time.perf_counter()
assert "torch" not in sys.modules
import torch
print(json.dumps({
    "import mapping_core": imported - started,
    "Registry.discover()": found - imported,
    "import torch, after that": time.perf_counter() - found,
}))
"""


def measure(rounds: int) -> list[Row]:
    """Milliseconds, each round in a fresh process; a first one, which fills the disk's cache, is forgotten."""
    measured: list[dict[str, float]] = []
    for _ in range(rounds + 1):
        run = subprocess.run([sys.executable, "-c", _CODE], check=True, capture_output=True, text=True)  # noqa: S603
        measured.append(json.loads(run.stdout))
    return [
        {"method": name, "ms": 1000 * statistics.median(each[name] for each in measured[1:])} for name in measured[0]
    ]
