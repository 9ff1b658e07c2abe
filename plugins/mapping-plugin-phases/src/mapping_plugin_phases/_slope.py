"""How fast ordinary training lowers the loss, where that can be told from noise."""

from __future__ import annotations

import math
from typing import Any

#: Points that a line is fitted through, at least: fewer say nothing of their noise.
_LEAST = 4


class Slope:
    """A least-squares line through the losses of phases over time, over at least `window` steps.

    >>> slope = Slope(window=80)
    >>> for index in range(8):
    ...     slope.add(steps=20, seconds=2.0, loss=1.0 - 0.1 * index + 0.01 * (index % 2))
    >>> round(slope.decrease, 2)
    0.05
    """

    def __init__(self, window: int) -> None:
        self._window = window
        self._now = 0.0
        self._points: list[tuple[int, float, float]] = []  # steps, the moment in the phase's middle, loss

    def add(self, *, steps: int, seconds: float, loss: float) -> None:
        """Note a phase; what is older than the window, and not needed for the line, is forgotten."""
        self._points.append((steps, self._now + seconds / 2.0, loss))
        self._now += seconds
        points = self._points
        while len(points) > _LEAST and sum(each[0] for each in points[1:]) >= self._window:
            del points[0]

    @property
    def measured(self) -> bool:
        """Whether there are steps enough to fit a line."""
        return len(self._points) >= _LEAST and sum(each[0] for each in self._points) >= self._window

    @property
    def decrease(self) -> float:
        """The decrease of the loss per second, 0 where two standard errors do not tell it from none."""
        count = len(self._points)
        if count < _LEAST:
            return 0.0
        times, losses = [each[1] for each in self._points], [each[2] for each in self._points]
        middle, mean = sum(times) / count, sum(losses) / count
        spread = sum((time - middle) ** 2 for time in times)
        if not spread > 0.0:
            return 0.0
        slope = sum((time - middle) * (loss - mean) for time, loss in zip(times, losses, strict=True)) / spread
        left = sum((loss - mean - slope * (time - middle)) ** 2 for time, loss in zip(times, losses, strict=True))
        error = math.sqrt(left / (count - 2) / spread)
        return -slope if -slope > 2.0 * error else 0.0

    def state_dict(self) -> dict[str, Any]:
        """The points of the window."""
        return {"now": self._now, "points": [list(each) for each in self._points]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave."""
        self._now = state["now"]
        self._points = [(int(steps), float(moment), float(loss)) for steps, moment, loss in state["points"]]
