"""What `mapping demo` runs: one network, trained directly and through latents, on real digits."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from attrs import define
from torch import nn

from mapping_core.interfaces.callback import Callback
from mapping_core.model import MappingModel
from mapping_core.reference.data import digits
from mapping_core.reference.models import DigitsCNN
from mapping_core.registry import Registry
from mapping_core.training.checkpoint import write_model
from mapping_core.training.history import StepRecord
from mapping_core.training.trainer import MappingTrainer

STRATEGIES = ("slvt", "layerwise")


@define(frozen=True, kw_only=True)
class DemoRow:
    """One line of the table. `accuracy` is on the held-out quarter after the last epoch."""

    method: str
    accuracy: float
    numbers: int
    file_bytes: int
    step_ms: float


class StepTimer(Callback):
    """The median time between the ends of two training batches, in milliseconds."""

    def __init__(self) -> None:
        self._ends: list[float] = []

    def on_batch_end(self, trainer: MappingTrainer, record: StepRecord) -> None:
        """Note the time."""
        self._ends.append(time.perf_counter())

    def median_ms(self) -> float:
        """The median; the pauses for validation are too few to move it."""
        gaps = [after - before for before, after in zip(self._ends, self._ends[1:], strict=False)]
        return 1000 * statistics.median(gaps)


def run_demo(*, latent_dim: int = 2048, epochs: int = 40, seed: int = 0, progress: bool = True) -> Iterator[DemoRow]:
    """Train `DigitsCNN` directly, then from the same start through each strategy; one row as each ends.

    Every run has the same batches in the same order and the same number of epochs; the
    held-out quarter is only looked at, never selected on.
    """
    registry = Registry.discover()
    for strategy in STRATEGIES:
        # Before anything is trained: a missing plugin, or a budget that does not fit, fails here.
        MappingModel(DigitsCNN(), latent_dim, strategy, registry=registry)
    for method in ("direct", *STRATEGIES):
        train, held_out = digits()
        torch.manual_seed(seed)
        network = DigitsCNN()
        model: nn.Module = network
        if method != "direct":
            model = MappingModel(network, latent_dim, method, seed=seed, registry=registry)
        timer = StepTimer()
        trainer = MappingTrainer(
            model,
            train,
            held_out,
            max_epochs=epochs,
            seed=seed,
            callbacks=[timer],
            accelerator="cpu",
            progress=progress,
            registry=registry,
        )
        history = trainer.fit()
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "model.safetensors"
            write_model(file, model)
            size = file.stat().st_size
        yield DemoRow(
            method=method,
            accuracy=history["val_accuracy"][-1],
            numbers=sum(parameter.numel() for parameter in model.parameters()),
            file_bytes=size,
            step_ms=timer.median_ms(),
        )
