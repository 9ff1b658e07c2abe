"""Windows that make no step, since their loss or gradient is not finite: what is done then, and when it is too much."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from mapping_core.errors import NonFiniteError
from mapping_core.logs import get_logger

if TYPE_CHECKING:
    from mapping_core.training.loop import Loop

#: After so many steps in a row without a finite gradient a run has nowhere to go.
_MOST = 25


class Refusals:
    """Does what `nonfinite` says, leaves nothing of such a window behind, and counts them."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._policy = loop.trainer.config.nonfinite
        self._saved: dict[str, Any] = {}  # what a rollback goes back to
        #: Such windows in a row.
        self.count = 0

    def keep(self) -> None:
        """Copy the weights and what trains them, for a rollback to come back to."""
        if self._policy == "rollback":
            trainer = self._loop.trainer
            self._saved = copy.deepcopy(
                {"step": trainer.step, "model": trainer.model.state_dict(), **self._loop.training_state()}
            )

    def refuse(self, fault: str) -> None:
        """Make no step of this window; a jump that is still being corrected is taken back."""
        loop, trainer = self._loop, self._loop.trainer
        loop.buffers.put_back()
        if loop.predictor is not None and loop.predictor.take_back():
            get_logger().warning("jump taken back", fault=fault, step=trainer.step)
            loop.phases.take_back()
            return
        if loop.recovery is not None:
            self.count += 1
            loop.recovery.refused()
            return
        where = f"at step {trainer.step + 1} (epoch {trainer.epoch}, batch {trainer.batch - 1})"
        if self._policy == "raise":
            raise NonFiniteError(
                f"{fault} {where}; no optimiser step was made with it: check the batch for NaN, or lower learning_rate"
            )
        self.add(f"{fault} {where}")
        get_logger().warning("not finite", fault=f"{fault} {where}", policy=self._policy)
        if self._policy == "rollback":
            saved = copy.deepcopy(self._saved)
            trainer.step = saved["step"]
            trainer.model.load_state_dict(saved["model"])
            loop.load_training_state(saved)

    def add(self, fault: str) -> None:
        """Count one; raises `NonFiniteError` where there are too many in a row."""
        self.count += 1
        if self.count >= _MOST:
            raise NonFiniteError(f"{fault}, and so for {self.count} steps in a row: lower learning_rate")
