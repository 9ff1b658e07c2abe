"""What installed plugins cost: finding them, in fresh processes, and a training step, with them and without.

    python -m benchmarks.plugins [--count 30] [--rounds 15] [--threads 1]

The plugins are distributions of one mapper each, written into a temporary folder, beside those that are installed.
A step is measured in alternation in one process, as CPU time, which other work on the machine adds little to;
the ratio is the median of ratios within a round.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

import mapping_core.builtin
from mapping_core import MappingModel, MappingTrainer, Registry
from mapping_core.testing.worlds import OneLatentStrategy

_PLUGIN = """
from attrs import define, field
from attrs.validators import ge
from mapping_core import MapperConfig, hookimpl

@define(frozen=True, kw_only=True)
class Some(MapperConfig):
    name = "some_{index}"
    rank: int = field(default=3, validator=ge(1))

@hookimpl
def mapping_mappers():
    return [Some]
"""

_FIND = """
import json, sys, time
from mapping_core import Registry
from mapping_core.builtin import Srht
Registry.of()
wall, cpu = time.perf_counter(), time.process_time()
found = len(Registry.discover().plugins)
print(json.dumps([1000 * (time.perf_counter() - wall), 1000 * (time.process_time() - cpu), found - 1]))
assert "torch" not in sys.modules
"""

STEPS = 200


def install(folder: Path, count: int) -> None:
    """Write distributions as an installer leaves them."""
    for index in range(count):
        folder.joinpath(f"some_{index}.py").write_text(_PLUGIN.format(index=index), encoding="utf-8")
        info = folder / f"some_{index}-1.0.dist-info"
        info.mkdir()
        described = f"Metadata-Version: 2.1\nName: some-{index}\nVersion: 1.0\nRequires-Dist: mapping-core>=0.1\n"
        info.joinpath("METADATA").write_text(described, "utf-8")
        info.joinpath("entry_points.txt").write_text(f"[mapping_core]\nsome_{index} = some_{index}\n", "utf-8")


def finding(folder: Path, rounds: int) -> None:
    """Print what discovery takes in fresh processes; a first one writes bytecode and is forgotten."""
    rows = []
    for _ in range(rounds + 1):
        environment = {**os.environ, "PYTHONPATH": str(folder)}
        command = [sys.executable, "-c", _FIND]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)  # noqa: S603
        rows.append(json.loads(done.stdout))
    wall, cpu = (statistics.median(row[column] for row in rows[1:]) for column in (0, 1))
    print(f"finding {rows[0][2]} plugins: {wall:.1f} ms, of CPU {cpu:.1f} ms, without torch")


def trainer(registry: Registry) -> MappingTrainer:
    """A run of a small network, whose steps cost little beside what might be added to them."""
    torch.manual_seed(0)
    x = torch.randn(64, 8)
    target = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
    model = MappingModel(target, 16, OneLatentStrategy(), registry=registry)
    batches = [(part, (part.sum(1) > 0).long()) for part in x.view(4, 16, 8)]
    options: dict[str, Any] = {"max_epochs": STEPS // len(batches), "progress": False, "accelerator": "cpu", "seed": 0}
    return MappingTrainer(model, batches, registry=registry, **options)


def training(rounds: int) -> None:
    """Print the microseconds of a step with all that is installed, and with core alone."""
    registries = {"all": Registry.discover(), "core": Registry.of(mapping_core.builtin)}
    taken: dict[str, list[float]] = {name: [] for name in registries}
    for turn in range(rounds + 1):
        for name in sorted(registries, reverse=bool(turn % 2)):
            run = trainer(registries[name])
            started = time.process_time()
            run.fit()
            taken[name].append(1e6 * (time.process_time() - started) / STEPS)
    ratios = [all_ / core for all_, core in zip(taken["all"][1:], taken["core"][1:], strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
    count = len(registries["all"].plugins) - 1
    medians = {name: statistics.median(each[1:]) for name, each in taken.items()}
    print(f"a step with {count} plugins: {medians['all']:.0f} us of CPU, with core alone {medians['core']:.0f} us")
    print(f"ratio {middle:.3f} (quartiles {low:.3f} to {high:.3f})")


def main() -> None:
    """Measure what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=30, help="plugins in all, those that are installed among them")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as name:
        install(Path(name), max(0, options.count - (len(Registry.discover().plugins) - 1)))
        sys.path.insert(0, name)
        importlib.invalidate_caches()
        finding(Path(name), options.rounds)
        training(options.rounds)


if __name__ == "__main__":
    main()
