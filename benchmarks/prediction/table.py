"""The table of runs at tuned rates."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable
from typing import Any

from benchmarks.prediction.measuring import LAST, reached, smoothed

Row = dict[str, Any]

TOTALS = ("seconds", "cpu", "backward", "forward")
#: A target is what the tuned `constant` of the tuning seeds has after these shares of its steps.
SHARES = {"train": (0.7, 1.0), "validation": (0.4, 0.7, 1.0)}
MARGIN = 0.02  # of the loss at the end: a method whose difference surely lies below it is no worse
SURE = {2: 6.31, 3: 2.92, 4: 2.35, 5: 2.13, 6: 2.02, 7: 1.94, 8: 1.89}  # one-sided 95 % of Student's t, by runs


def targets(tuning: list[Row]) -> list[tuple[str, float]]:
    """Parts and losses to reach, from the runs of the tuned `constant` on one task."""
    found = []
    for part, shares in SHARES.items():
        for share in shares:
            losses = [_at(smoothed(row["points"], part), share)[part] for row in tuning]
            if losses:
                found.append((part, round(statistics.mean(losses), 3)))
    return found


def page(rows: list[Row], tuning: dict[str, list[Row]]) -> str:
    """One table a task and factor: what each method needs for each target, as a share of what `constant` needs."""
    parts = []
    for task in dict.fromkeys(row["task"] for row in rows):
        for factor in sorted({row["factor"] for row in rows if row["task"] == task}, reverse=True):
            own = [row for row in rows if row["task"] == task]
            title = f"`{task}`" + (f", rates times {factor:g}" if factor != 1 else "")
            lines = _lines([row for row in own if row["factor"] == factor], own, targets(tuning[task]), factor)
            parts.append(f"### {title}\n\n" + "\n".join(lines))
    return "\n\n".join(parts)


def _lines(rows: list[Row], task: list[Row], goals: list[tuple[str, float]], factor: float) -> Iterable[str]:
    names = " | ".join(f"{part} {target:g}" for part, target in goals)
    gap = "" if factor == 1 else " gap recovered, train, validation |"
    measured = f"validation loss at the end | less `constant`'s, bound |{gap} wall | CPU | backward | forward"
    yield f"| method | rate | runs | {measured} | {names} | what it did |"
    yield "|" + "---|" * (10 + len(goals) + (factor != 1))
    base = {row["seed"]: row for row in rows if row["method"] == "constant"}
    tuned = {row["seed"]: row for row in task if row["method"] == "constant" and row["factor"] == 1}
    for method in dict.fromkeys(row["method"] for row in rows):
        own = [row for row in rows if row["method"] == method]
        last = [_end(row, "validation") for row in own]
        rates = ", ".join(f"{rate:g}" for rate in sorted({row["rate"] for row in own}))
        spread = f"{statistics.mean(last):.4f}" + (f" +- {statistics.stdev(last):.4f}" if len(last) > 1 else "")
        totals = " | ".join(_ratio(own, base, key) for key in TOTALS)
        cells = " | ".join(_to_target(own, base, part, target) for part, target in goals)
        share = "" if factor == 1 else f" {_recovered(own, base, tuned)} |"
        ends = f"{spread} | {_difference(own, base)} |{share} {totals}"
        yield f"| {method} | {rates} | {len(own)} | {ends} | {cells} | {_did(own)} |"


def _at(points: list[dict[str, float]], share: float) -> dict[str, float]:
    return next(point for point in points if point["step"] >= share * points[-1]["step"])


def _end(row: Row, part: str) -> float:
    losses: list[float] = [point[part] for point in row["points"][-LAST:]]
    return statistics.mean(losses)


def _difference(own: list[Row], base: dict[int, Row]) -> str:
    """The mean of paired differences, and the bound it surely lies below; bold: that is within the margin."""
    found = [_end(row, "validation") - _end(base[row["seed"]], "validation") for row in own if row["seed"] in base]
    if len(found) not in SURE:
        return ""
    mean = statistics.mean(found)
    bound = mean + SURE[len(found)] * statistics.stdev(found) / math.sqrt(len(found))
    return f"{mean:+.4f}, {bound:+.4f}" if bound > MARGIN else f"{mean:+.4f}, **{bound:+.4f}**"


def _recovered(own: list[Row], base: dict[int, Row], tuned: dict[int, Row]) -> str:
    """Of the loss that the tuned rate gains over this one, the median share that a method gains without it."""
    cells = []
    for part in SHARES:
        shares = []
        for row in own:
            if row["seed"] in base and row["seed"] in tuned:
                slow, fast = _end(base[row["seed"]], part), _end(tuned[row["seed"]], part)
                shares.append((slow - _end(row, part)) / (slow - fast))
        cells.append(f"{statistics.median(shares):.2f}" if shares else "")
    return ", ".join(cells)


def _ratio(own: list[Row], base: dict[int, Row], key: str) -> str:
    pairs = [row["points"][-1][key] / base[row["seed"]]["points"][-1][key] for row in own if row["seed"] in base]
    return f"{statistics.median(pairs):.2f}" if pairs else ""


def _to_target(own: list[Row], base: dict[int, Row], part: str, target: float) -> str:
    """Wall-clock, CPU, backward passes, forward equivalents: medians of shares of the baseline's; how many got there.

    A run that did not get there counts as infinite in the median; a pair whose baseline did not is left out.
    """
    ratios: dict[str, list[float]] = {key: [] for key in TOTALS}
    arrived = 0
    for row in own:
        found = reached(smoothed(row["points"], part), part, target)
        arrived += found is not None
        base_row = base.get(row["seed"])
        other = None if base_row is None else reached(smoothed(base_row["points"], part), part, target)
        if other is None:
            continue
        for key in TOTALS:
            ratios[key].append(math.inf if found is None else found[key] / other[key])
    count = f"{arrived}/{len(own)}"
    if not ratios["cpu"]:
        return count
    return " ".join(f"{statistics.median(ratios[key]):.2f}" for key in TOTALS) + f" ({count})"


def _did(own: list[Row]) -> str:
    """Means over runs: attempts at jumps and those accepted, or the share of steps that were sampled."""
    phases = [phase for row in own for phase in row.get("phases", [])]
    verdicts = Counter(phase["verdict"] for phase in phases if "verdict" in phase)
    if verdicts:
        probed = sum(verdicts[name] for name in ("accepted", "rejected", "non_finite", "rolled_back"))
        return f"{verdicts['accepted'] / len(own):.1f} of {probed / len(own):.1f} jumps"
    sampled = sum(phase["steps"] for phase in phases if phase.get("gain") is not None)
    steps = sum(row["points"][-1]["step"] for row in own)
    return f"{100 * sampled / steps:.0f} % sampled" if sampled else ""
