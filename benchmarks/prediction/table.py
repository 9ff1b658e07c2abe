"""The table of runs at tuned rates."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from typing import Any

from benchmarks.prediction.measuring import reached
from benchmarks.prediction.tasks import TASKS

Row = dict[str, Any]

TOTALS = ("cpu", "backward", "forward")
LAST = 4  # measurements at the end of a run whose mean counts: one alone is noisy


def page(rows: list[Row]) -> str:
    """One table a task and factor: what each method needs for each target, as a share of what `constant` needs."""
    parts = []
    for task in TASKS:
        for factor in sorted({row["factor"] for row in rows if row["task"] == task}):
            chosen = [row for row in rows if row["task"] == task and row["factor"] == factor]
            title = f"`{task}`" + (f", rates times {factor:g}" if factor != 1 else "")
            parts.append(f"### {title}\n\n" + "\n".join(_lines(task, chosen)))
    return "\n\n".join(parts)


def _lines(task: str, rows: list[Row]) -> Iterable[str]:
    targets = [(part, each) for part, found in TASKS[task].targets.items() for each in found]
    names = " | ".join(f"{part} {target:g}" for part, target in targets)
    yield f"| method | rate | runs | validation loss at the end | time | backward | forward | {names} |"
    yield "|---|---|---|---|---|---|---|" + "---|" * len(targets)
    base = {row["seed"]: row for row in rows if row["method"] == "constant"}
    for method in dict.fromkeys(row["method"] for row in rows):
        own = [row for row in rows if row["method"] == method]
        last = [statistics.mean(point["validation"] for point in row["points"][-LAST:]) for row in own]
        rates = ", ".join(f"{rate:g}" for rate in sorted({row["rate"] for row in own}))
        spread = f"{statistics.mean(last):.4f}" + (f" +- {statistics.stdev(last):.4f}" if len(last) > 1 else "")
        totals = " | ".join(_ratio([row["points"][-1] for row in own], own, base, key) for key in TOTALS)
        cells = " | ".join(_to_target(own, base, part, target) for part, target in targets)
        yield f"| {method} | {rates} | {len(own)} | {spread} | {totals} | {cells} |"


def _ratio(points: list[dict[str, float]], own: list[Row], base: dict[int, Row], key: str) -> str:
    pairs = [
        point[key] / base[row["seed"]]["points"][-1][key]
        for point, row in zip(points, own, strict=True)
        if row["seed"] in base
    ]
    return f"{statistics.median(pairs):.2f}" if pairs else ""


def _to_target(own: list[Row], base: dict[int, Row], part: str, target: float) -> str:
    """Time, backward passes and forward equivalents, medians of shares of the baseline's; and how many got there.

    A run that did not get there counts as infinite in the median, and so does a pair whose baseline did not.
    """
    ratios: dict[str, list[float]] = {key: [] for key in TOTALS}
    arrived = 0
    for row in own:
        found = reached(row["points"], part, target)
        arrived += found is not None
        other = reached(base[row["seed"]]["points"], part, target) if row["seed"] in base else None
        if other is None:
            continue
        for key in TOTALS:
            ratios[key].append(float("inf") if found is None else found[key] / other[key])
    count = f"{arrived}/{len(own)}"
    if not ratios["cpu"]:
        return count
    return " ".join(f"{statistics.median(ratios[key]):.2f}" for key in TOTALS) + f" ({count})"
