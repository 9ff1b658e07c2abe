"""What the trainer costs beside the work: steps of a model that does nothing, against a bare loop.

python -m benchmarks.perf.overhead [ROUNDS]

Each method makes epochs of 200 steps in turn with the others. A line is microseconds a step: the fewest of all rounds,
which is what the method takes when nothing else runs, the median, and the median of what it took more than the bare
loop in the same round.
"""

from __future__ import annotations

import io
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
from rich.console import Console
from torch import Tensor, nn

from mapping_core import Callback, MappingTrainer
from mapping_core.builtin import Csv, EarlyStopping, Ema
from mapping_core.builtin.callbacks.progress import ProgressCallback

STEPS = 200
ROUNDS = 40
RATE = 1e-3


class Nothing(nn.Module):
    """Adds two trained numbers to its input: the least that trains."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.bias


def batches() -> list[tuple[Tensor, Tensor]]:
    """An epoch of batches that are there already: loading is not what is measured."""
    generator = torch.Generator().manual_seed(0)
    return [(torch.randn(4, 2, generator=generator), torch.arange(4) % 2) for _ in range(STEPS)]


def bare(data: list[tuple[Tensor, Tensor]]) -> float:
    """Microseconds a step of the loop one writes by hand, with the trainer's own optimiser."""
    model = Nothing()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.0, fused=True)
    started = time.perf_counter()
    for x, y in data:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return 1e6 * (time.perf_counter() - started) / STEPS


def bare_with_the_same(data: list[tuple[Tensor, Tensor]]) -> float:
    """The same loop doing what the trainer does: a schedule, a check of loss and gradient, means, accuracy."""
    model = Nothing()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.0, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 - step / STEPS)
    total, right, items = torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64), 0
    started = time.perf_counter()
    for x, y in data:
        optimizer.zero_grad()
        outputs = model(x)
        loss = nn.functional.cross_entropy(outputs, y)
        assert math.isfinite(float(loss.detach()))
        loss.backward()  # type: ignore[no-untyped-call]
        assert model.bias.grad is not None
        assert math.isfinite(float(nn.utils.get_total_norm([model.bias.grad])))
        optimizer.step()
        schedule.step()
        count = int((y != -100).sum())
        total += loss.detach().double() * count
        right += (outputs.argmax(1) == y).sum()
        items += count
    return 1e6 * (time.perf_counter() - started) / STEPS


class Clock(Callback):
    """Microseconds a step of an epoch, its end and its checkpoint included."""

    started = 0.0
    ended = 0.0

    def on_epoch_start(self, trainer: MappingTrainer, epoch: int) -> None:
        self.started = time.perf_counter()

    def on_fit_end(self, trainer: MappingTrainer) -> None:
        self.ended = 1e6 * (time.perf_counter() - self.started) / STEPS


def trained(data: list[tuple[Tensor, Tensor]], *callbacks: Any, **options: Any) -> float:
    """Microseconds a step of the trainer with these callbacks."""
    clock = Clock()
    trainer = MappingTrainer(
        Nothing(),
        data,
        max_epochs=1,
        learning_rate=RATE,
        accelerator="cpu",
        progress=False,
        callbacks=[*callbacks, clock],
        **options,
    )
    trainer.fit()
    return clock.ended


def terminal() -> ProgressCallback:
    """The progress bar as on a terminal; what it draws goes nowhere."""
    return ProgressCallback(Console(file=io.StringIO(), force_terminal=True, width=100))


def with_folder(data: list[tuple[Tensor, Tensor]]) -> float:
    """The same with a folder: the log, the CSV file, the average, and a checkpoint at the end."""
    with tempfile.TemporaryDirectory() as folder:
        stopping = EarlyStopping(monitor="train_loss")
        return trained(data, terminal(), stopping, Csv(every=50), Ema(), run_dir=folder)


METHODS: dict[str, Callable[[list[tuple[Tensor, Tensor]]], float]] = {
    "bare loop": bare,
    "bare loop that does the same": bare_with_the_same,
    "trainer": trained,
    "with progress, log, early stopping": lambda data: trained(
        data, terminal(), "log", EarlyStopping(monitor="train_loss")
    ),
    "and run_dir, csv, ema": with_folder,
}


def main() -> None:
    """Measure and print."""
    torch.set_num_threads(1)
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    data = batches()
    measured: list[dict[str, float]] = []
    for _ in range(rounds + 1):
        measured.append({name: method(data) for name, method in METHODS.items()})
    print(f"torch {torch.__version__}, {rounds} rounds of {STEPS} steps, microseconds a step")
    for name in METHODS:
        times = [each[name] for each in measured[1:]]  # the first round warms up
        beyond = [each[name] - each["bare loop"] for each in measured[1:]]
        print(f"{name}: {min(times):.0f}, {statistics.median(times):.0f}, {statistics.median(beyond):.0f}")


if __name__ == "__main__":
    main()
