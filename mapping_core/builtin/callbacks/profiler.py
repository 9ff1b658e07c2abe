"""The profiler hook."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch.profiler import profile, schedule

from mapping_core.interfaces.callback import Callback

if TYPE_CHECKING:
    from mapping_core.builtin.callbacks import Profiler
    from mapping_core.training.history import StepRecord
    from mapping_core.training.trainer import MappingTrainer

_ROWS = 40


class ProfilerCallback(Callback):
    """Records one window of training batches, counted from where this process begins; on the first rank alone."""

    def __init__(self, config: Profiler, run_dir: Path) -> None:
        self._config = config
        self._run_dir = run_dir
        self._profile: profile | None = None
        self._left = 0

    def on_fit_start(self, trainer: MappingTrainer) -> None:
        if not trainer.is_first_rank:
            return
        # A batch of warm-up before those that count: the profiler's own start is in it.
        window = schedule(wait=self._config.skip, warmup=1, active=self._config.batches, repeat=1)
        self._profile = profile(schedule=window, on_trace_ready=self._write, record_shapes=True, profile_memory=True)
        self._left = self._config.skip + 1 + self._config.batches
        self._profile.start()

    def on_batch_end(self, trainer: MappingTrainer, record: StepRecord) -> None:
        if self._profile is None:
            return
        self._profile.step()
        self._left -= 1
        if not self._left:
            self._stop()

    def on_fit_end(self, trainer: MappingTrainer) -> None:
        self._stop()

    def on_exception(self, trainer: MappingTrainer, error: BaseException) -> None:
        self._stop()

    def _stop(self) -> None:
        if self._profile is not None:
            running, self._profile = self._profile, None
            running.stop()

    def _write(self, finished: profile) -> None:
        order = "self_cuda_time_total" if torch.cuda.is_available() else "self_cpu_time_total"
        table = finished.key_averages().table(sort_by=order, row_limit=_ROWS)
        (self._run_dir / "profile.txt").write_text(table, encoding="utf-8")
        finished.export_chrome_trace(str(self._run_dir / "profile.json"))
