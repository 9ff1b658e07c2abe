r"""Predictive training against tuned baselines, in pieces that fit between other things.

    MAPPING_DATA=... python -m benchmarks.prediction run --task mapped --method constant cosine --seeds 100 --rows FILE
    python -m benchmarks.prediction tuned --rows FILE
    MAPPING_DATA=... python -m benchmarks.prediction run --task mapped --method constant cosine --seeds 0 1 2 3 4 \\
        --tuned-by FILE --rows FILE
    python -m benchmarks.prediction table --rows FILE

`run` adds one line a run to FILE: the losses of a fixed sample of the training and the validation part over
time. Without `--tuned-by` it makes a run for every rate of the task's grid, the same for all methods; with it, at each
method's best rate of the seeds from 100 on (by the validation loss over the last 100 steps), or, with `--factor`, at
that many times the rate of `constant`. `table` takes the seeds below 100; its targets are losses of the tuned
`constant` of the tuning seeds. Nothing is selected on test data: there is none. The clock stops for measurements, and
for nothing else. One thread, one run at a time; methods take turns within a seed.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.prediction.measuring import LAST, Curve, Passes
from benchmarks.prediction.methods import METHODS, Average
from benchmarks.prediction.table import page
from benchmarks.prediction.tasks import TASKS, Data
from mapping_core import MappingTrainer, PhaseOutcome

TUNING = 100  # the first seed that tunes

Row = dict[str, Any]


def main(arguments: Sequence[str] | None = None) -> None:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["run", "tuned", "table"])
    parser.add_argument("--task", choices=TASKS, nargs="+", default=list(TASKS))
    parser.add_argument("--method", choices=METHODS, nargs="+", default=list(METHODS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[TUNING])
    parser.add_argument("--steps", type=int, help="fewer than the task has: to see that it runs")
    parser.add_argument("--factor", type=float, default=1.0)
    parser.add_argument("--tuned-by", type=Path)
    parser.add_argument("--rows", type=Path, required=True)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    if options.what == "run":
        run_all(options)
    elif options.what == "tuned":
        for (task, method), (rate, loss) in tuned(read(options.rows)).items():
            print(f"{task} {method}: {rate:g} ({loss:.4f})")
    else:
        rows = read(options.rows)
        best = {task: rate for (task, method), (rate, _) in tuned(rows).items() if method == "constant"}
        tuning: dict[str, list[Row]] = defaultdict(list)
        for row in rows:
            task = row["task"]
            if row["seed"] >= TUNING and row["method"] == "constant" and row["rate"] == best[task]:
                tuning[task].append(row)
        print(page([row for row in rows if row["seed"] < TUNING], tuning))


def run_all(options: argparse.Namespace) -> None:
    """Make all runs and write each as a line."""
    best = tuned(read(options.tuned_by)) if options.tuned_by else {}
    for task in options.task:
        data = TASKS[task].data()
        for seed in options.seeds:
            for method in options.method:
                # A rate that is too small is so for the plain run, whatever the method.
                tuned_as = "constant" if options.factor != 1.0 else METHODS[method].tuned_as or method
                rates = [best[task, tuned_as][0] * options.factor] if best else TASKS[task].grid
                for rate in rates:
                    row = run(task, method, rate, seed, data, options.steps)
                    row["factor"] = options.factor
                    with options.rows.open("a", encoding="utf-8") as file:
                        file.write(json.dumps(row) + "\n")


def run(task: str, method: str, rate: float, seed: int, data: Data, steps: int | None = None) -> Row:
    """Train once."""
    what, how = TASKS[task], METHODS[method]
    model = what.model(seed)
    passes = Passes()
    hook = model.register_forward_hook(passes)
    callbacks = how.callbacks()
    (lend,) = [each.lend for each in callbacks if isinstance(each, Average)] if how.averaged else [None]
    curve = Curve(what, data, passes, lend)
    trainer = MappingTrainer(
        model,
        data.batches,
        loss=what.trained,
        learning_rate=rate,
        schedule=how.schedule,
        max_steps=steps or what.steps,
        max_epochs=10_000,
        seed=seed,
        accelerator="cpu",
        progress=False,
        callbacks=[*callbacks, curve],
        **how.options,
    )
    trainer.fit()
    hook.remove()
    return {
        "task": task,
        "method": method,
        "rate": rate,
        "seed": seed,
        "points": curve.points,
        "phases": [_plain(outcome) for outcome in trainer.history.outcomes],
    }


def _plain(outcome: PhaseOutcome) -> Row:
    """What a phase did, as one short line of a file."""
    phase: Row = {"phase": outcome.phase.value, "steps": outcome.steps, "seconds": outcome.step_seconds}
    if outcome.gain is not None:
        phase["gain"] = outcome.gain
    if outcome.jump is not None:
        phase |= {"verdict": outcome.jump.verdict.value, "seconds": outcome.jump.seconds, "bound": outcome.jump.bound}
    return phase


def tuned(rows: list[Row]) -> dict[tuple[str, str], tuple[float, float]]:
    """Of the tuning seeds, each method's best rate on each task, and its validation loss at the end."""
    losses: dict[tuple[str, str], dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if row["seed"] >= TUNING and row["factor"] == 1.0:
            last = [point["validation"] for point in row["points"][-LAST:]]
            losses[row["task"], row["method"]][row["rate"]].append(statistics.mean(last))
    best = {}
    for key, found in losses.items():
        loss, rate = min((statistics.mean(each), rate) for rate, each in found.items())
        best[key] = (rate, loss)
    return best


def read(path: Path) -> list[Row]:
    """The lines of a file, none if it is not there."""
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.exists() else []


if __name__ == "__main__":
    main()
