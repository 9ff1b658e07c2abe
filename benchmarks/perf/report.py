"""The page on performance, made from the measured numbers."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attrs import define

from benchmarks.perf.measuring import Row

_HEAD = """# Performance

Written by `python -m benchmarks.perf --out docs`, which also runs single parts (`--help`). All numbers are in
`performance.json` beside this page, with the samples they are medians of.

Measured on {date}: {device}, {processor}, threads: {threads}, torch {torch}, Python {python}.

How to read it: all methods of a table take turns in one process, and a ratio is the median of the ratios within a
round, which other work on the machine disturbs less than the times; half of all rounds lie between its quartiles, and
differences smaller than these say nothing. Names such as `slvt 2048` are a strategy and its
`latent_dim`; the mapper is the default. Inputs are random.
"""


@define(frozen=True)
class Section:
    """A section of the page: its title, how to read it, and how a row fills each column."""

    title: str
    text: str
    columns: Mapping[str, Callable[[Row], str]]


_OF_NETWORKS = {
    "step": Section(
        "Time of a step",
        """Forward, backward and optimiser, on one batch. Mapped models use fused Adam, and the ratio is to direct
        training with fused Adam.""",
        {
            "ms": lambda row: _number(row["ms"]),
            "/ direct": lambda row: f"{row['ratio']:.3f}",
            "quartiles": lambda row: _quartiles(row, 3),
        },
    ),
    "mapping": Section(
        "The mapping alone",
        """Forward writes all weights, backward reads all their gradients. The floor is a `copy_` of as many floats, and
        the ratio is to it. GB/s counts what cannot be spared: base, weights and gradients once each, 12 bytes a weight,
        and the mapper's tables twice; a copy moves 8 bytes a weight. The rest of the time is arithmetic, and for
        small networks that of launching operations.""",
        {
            "forward ms": lambda row: _number(row.get("forward_ms")),
            "backward ms": lambda row: _number(row.get("backward_ms")),
            "both ms": lambda row: _number(row["ms"]),
            "/ copy_": lambda row: f"{row['ratio']:.1f}",
            "quartiles": lambda row: _quartiles(row, 1),
            "GB/s": lambda row: f"{row['gb_per_s']:.1f}",
        },
    ),
    "sizes": Section(
        "Building and keeping",
        """Build time is that of `MappingModel(...)` around a network that is there. Frozen state is what the mapper
        keeps beside the base, which takes 4 bytes a weight. A file (`save`) holds the latent, tracked statistics,
        and their names with the recipe; for the network itself it is `torch.save` of its `state_dict()`.""",
        {
            "build ms": lambda row: _number(row.get("build_ms")),
            "frozen bytes": lambda row: _integer(row.get("frozen_bytes")),
            "a weight": lambda row: f"{row['frozen_bytes_a_weight']:.3f}" if "frozen_bytes" in row else "",
            "file bytes": lambda row: _integer(row["file_bytes"]),
            "of which statistics": lambda row: _integer(row.get("statistics_bytes")),
        },
    ),
    "memory": Section(
        "Peak memory of a step",
        """What torch's allocator hands out during a step beyond what was held before. Held before, and
        not counted, are Adam's state, 8 bytes a trainable number, and of mapped models the base and the memory of
        large weights, 4 bytes a weight each. Direct training holds its weights, 4 bytes each.""",
        {"peak MB": lambda row: f"{row['peak_bytes'] / 1e6:.1f}", "/ direct": lambda row: f"{row['ratio']:.2f}"},
    ),
    "ddp": Section(
        "Bytes on the wire",
        """DistributedDataParallel on two gloo ranks, counted: the gradients a rank reduces at a step, the buffers that
        rank 0 broadcasts before it (BatchNorm statistics), and all that it broadcasts once at the start.""",
        {
            "gradient bytes a step": lambda row: _integer(row["gradient_bytes"]),
            "buffer bytes a step": lambda row: _integer(row["buffer_bytes"]),
            "bytes at the start": lambda row: _integer(row["start_bytes"]),
        },
    ),
}
_ONCE = {
    "hooks": Section(
        "Callbacks",
        """What the trainer's two calls of its events add to a step, with callbacks that listen to both and do
        nothing.""",
        {"microseconds a step": lambda row: f"{row['us']:.2f}"},
    ),
    "imports": Section(
        "Import and discovery",
        """In fresh processes. Importing `mapping_core` and finding the plugins loads no torch.""",
        {"ms": lambda row: _number(row["ms"])},
    ),
}


def page(results: dict[str, Any]) -> str:
    """The page in Markdown."""
    parts = [_HEAD.format(**results["machine"])]
    for part, section in _OF_NETWORKS.items():
        measured = [each for each in results["networks"].values() if part in each]
        if measured:
            parts.append(_opening(section))
            parts += [f"{each['title']}:\n\n{_table(section, each[part])}" for each in measured]
    for part, section in _ONCE.items():
        if part in results["once"]:
            parts += [_opening(section), _table(section, results["once"][part])]
    return "\n".join(parts)


def _opening(section: Section) -> str:
    text = textwrap.fill(" ".join(section.text.split()), 120, break_on_hyphens=False)
    return f"## {section.title}\n\n{text}\n"


def _table(section: Section, rows: Sequence[Row]) -> str:
    lines = [["", *section.columns], ["---"] * (len(section.columns) + 1)]
    lines += [[row["method"], *(cell(row) for cell in section.columns.values())] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def _number(value: float | None) -> str:
    """Three figures, or nothing."""
    if value is None:
        return ""
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.3g}"


def _quartiles(row: Row, digits: int) -> str:
    low, high = row["ratio_quartiles"]
    return f"{low:.{digits}f} to {high:.{digits}f}"


def _integer(value: int | None) -> str:
    return "" if value is None else f"{value:,}"
