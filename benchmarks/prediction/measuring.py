"""One run: its losses over time, backward passes and forward equivalents."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from attrs import define, field
from torch import Tensor, nn

from benchmarks.prediction.tasks import Data, Probe, Task
from mapping_core import Callback, MappingTrainer

EVERY = 25  # steps between two measurements of the loss
LAST = 4  # measurements of which a loss is the mean


@define
class Passes:
    """Items that went through a network with and without a graph behind them; a forward hook counts."""

    with_graph: int = 0
    without: int = 0
    counting: bool = True

    def __call__(self, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        items = next(len(each) for each in inputs if isinstance(each, Tensor))
        if self.counting:
            if torch.is_grad_enabled():
                self.with_graph += items
            else:
                self.without += items

    @property
    def forward_equivalents(self) -> int:
        """A backward pass counts as two forward passes."""
        return 3 * self.with_graph + self.without


@define
class Curve(Callback):
    """Measures train and validation loss every `EVERY` steps, with the clocks stopped.

    Seconds are those on the wall, and those of the process on its one thread: the latter say what the
    former would on a machine with nothing else to do.

    `lend` may exchange the weights for the measurement, and gives a function that takes them back.
    """

    task: Task
    data: Data
    passes: Passes
    lend: Callable[[nn.Module], Callable[[], None]] | None = None
    points: list[dict[str, float]] = field(factory=list)
    _running: float = 0.0
    _worked: float = 0.0
    _since: tuple[float, float] = (0.0, 0.0)

    def on_fit_start(self, trainer: MappingTrainer) -> None:
        self._since = time.perf_counter(), time.process_time()

    def on_batch_end(self, trainer: MappingTrainer, record: Any) -> None:
        if record.step % EVERY and record.step != trainer.config.max_steps:
            return
        self._running += time.perf_counter() - self._since[0]
        self._worked += time.process_time() - self._since[1]
        self.passes.counting = False
        take_back = self.lend(trainer.model) if self.lend else lambda: None
        self.points.append(
            {
                "step": record.step,
                "seconds": self._running,
                "cpu": self._worked,
                "backward": self.passes.with_graph,
                "forward": self.passes.forward_equivalents,
                "train": self._loss(trainer.model, self.data.train),
                "validation": self._loss(trainer.model, self.data.validation),
            }
        )
        take_back()
        self.passes.counting = True
        self._since = time.perf_counter(), time.process_time()

    @torch.no_grad()
    def _loss(self, model: nn.Module, probe: Probe) -> float:
        model.eval()
        parts = zip(torch.split(probe[0], 500), torch.split(probe[1], 500), strict=True)
        total = sum(float(self.task.loss(model(x), y)) * len(x) for x, y in parts)
        model.train()
        return total / len(probe[0])


def smoothed(points: list[dict[str, float]], part: str) -> list[dict[str, float]]:
    """Each loss as the mean of the last four measurements: one alone is noise that a target may be reached by."""
    losses = [point[part] for point in points]
    means = [statistics.mean(losses[max(0, end - LAST) : end]) for end in range(1, len(losses) + 1)]
    return [{**point, part: mean} for point, mean in zip(points, means, strict=True)]


def reached(points: list[dict[str, float]], part: str, target: float) -> dict[str, float] | None:
    """When a loss first fell to a target, between two measurements by a straight line; None: not in this run."""
    before = None
    for point in points:
        if point[part] <= target:
            if before is None:
                return point
            share = (before[part] - target) / (before[part] - point[part])
            return {key: before[key] + share * (point[key] - before[key]) for key in point}
        before = point
    return None
