"""What callbacks cost a step: the trainer's calls of its events, with no, one and ten of them."""

from __future__ import annotations

import statistics
import time
from typing import Any

from benchmarks.perf.measuring import Row
from mapping_core.interfaces.callback import Callback
from mapping_core.training.events import Events

COUNTS = {0: "no callback", 1: "one callback", 10: "ten callbacks"}
STEPS = 1000


class Listener(Callback):
    """Listens to both events of a step and does nothing."""

    def __init__(self, index: int) -> None:
        self.index = index

    @property
    def state_key(self) -> str:
        return f"listener {self.index}"

    def on_batch_start(self, trainer: Any, batch: Any) -> None:
        """Do nothing."""

    def on_batch_end(self, trainer: Any, record: Any) -> None:
        """Do nothing."""


def measure(rounds: int) -> list[Row]:
    """Microseconds a step for each number of callbacks, in turn."""
    events = {count: Events([Listener(index) for index in range(count)]) for count in COUNTS}
    times: dict[int, list[float]] = {count: [] for count in COUNTS}
    for _ in range(rounds + 1):
        for count, each in events.items():
            started = time.perf_counter()
            for _ in range(STEPS):
                each.emit("on_batch_start", None, None)
                each.emit("on_batch_end", None, None)
            times[count].append(1e6 * (time.perf_counter() - started) / STEPS)
    return [{"method": name, "us": statistics.median(times[count][1:])} for count, name in COUNTS.items()]
