"""The checkpoint callback."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from mapping_core.interfaces.callback import Callback
from mapping_core.training.checkpoint import write_checkpoint

if TYPE_CHECKING:
    from mapping_core.training.trainer import MappingTrainer


class CheckpointCallback(Callback):
    """Writes ``run_dir/checkpoints/step-00000042/`` when the run ends."""

    def __init__(self, run_dir: Path) -> None:
        self._folder = run_dir / "checkpoints"

    def on_fit_end(self, trainer: MappingTrainer) -> None:
        path = write_checkpoint(self._folder / f"step-{trainer.step:08d}", trainer.model)
        trainer.announce_checkpoint(path)
