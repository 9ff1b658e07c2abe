"""What training through a latent costs, in time, memory and bytes.

    python -m benchmarks.perf [--network resnet18 ...] [--only step ...] [--out docs]

Everything is measured in alternation in one process: in each round all methods take their turn, and
ratios are medians of ratios within a round. `--out DIR` writes DIR/performance.json and the page
DIR/performance.md made from it; a part that is run alone replaces its own numbers there, if they are of
the same day, machine and versions. Without `--out` the page is printed. Runs on CUDA where there is one.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.perf import ddp, hooks, imports, mapping, memory, sizes, step
from benchmarks.perf.machine import machine
from benchmarks.perf.measuring import Plan, Row
from benchmarks.perf.networks import DEFAULT, NETWORKS, Network
from benchmarks.perf.report import page

#: What is measured of each network, and what once.
OF_NETWORKS: dict[str, Callable[[Network, Plan], list[Row]]] = {
    "step": step.measure,
    "mapping": mapping.measure,
    "sizes": sizes.measure,
    "memory": memory.measure,
    "ddp": ddp.measure,
}
ONCE: dict[str, Callable[[int], list[Row]]] = {"hooks": hooks.measure, "imports": imports.measure}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", nargs="+", choices=NETWORKS, default=DEFAULT)
    parser.add_argument("--only", nargs="+", choices=[*OF_NETWORKS, *ONCE], default=[*OF_NETWORKS, *ONCE])
    parser.add_argument("--latent-dim", nargs="+", type=int, default=[512, 2048, 16384])
    parser.add_argument("--strategy", nargs="+", default=["slvt", "layerwise"])
    parser.add_argument("--rounds", type=int, help="the same for all networks; by default each has its own")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--quick", action="store_true", help="two rounds of one latent_dim: to see that it runs")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    plan = Plan(
        dims=tuple(options.latent_dim[:1] if options.quick else options.latent_dim),
        strategies=tuple(options.strategy),
        device=torch.device("cuda" if torch.cuda.is_available() else "cpu"),
        rounds=2 if options.quick else options.rounds,
    )
    results: dict[str, Any] = {"machine": machine(plan.device), "networks": {}, "once": {}}
    if options.out is not None:
        results = _earlier(options.out / "performance.json", results)
    for part in options.only:
        if part in ONCE:
            _say(part)
            results["once"][part] = ONCE[part](plan.rounds or 7)
            continue
        for key in options.network:
            _say(f"{part}: {key}")
            network = NETWORKS[key]
            results["networks"].setdefault(key, {"title": network.describe()})[part] = OF_NETWORKS[part](network, plan)
            gc.collect()
    results["networks"] = {key: results["networks"][key] for key in NETWORKS if key in results["networks"]}
    if options.out is None:
        print(page(results))
        return
    options.out.mkdir(parents=True, exist_ok=True)
    options.out.joinpath("performance.json").write_text(json.dumps(results, indent=1) + "\n", "utf-8")
    options.out.joinpath("performance.md").write_text(page(results), "utf-8")


def _earlier(path: Path, fresh: dict[str, Any]) -> dict[str, Any]:
    """Numbers of the same machine, day and versions, to be completed; else none."""
    if not path.exists():
        return fresh
    earlier: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return earlier if earlier["machine"] == fresh["machine"] else fresh


def _say(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
