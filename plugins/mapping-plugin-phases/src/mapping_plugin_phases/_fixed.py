"""Jumps at fixed intervals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mapping_core import Phase, PhaseDecision, PhaseOutcome, PhasePolicy
from mapping_core.interfaces.phase_policy import Progress, Verdict

if TYPE_CHECKING:
    from mapping_plugin_phases import Fixed


class FixedPolicy(PhasePolicy):
    """Remembers one thing: whether the last jump was kept, and so is to be followed by CORRECT."""

    def __init__(self, config: Fixed) -> None:
        self._config = config
        self._kept = False

    def next(self, progress: Progress) -> PhaseDecision:
        config = self._config
        if progress.phase is None:
            return PhaseDecision(Phase.WARMUP, config.warmup)
        if progress.phase is Phase.FULL:
            return PhaseDecision(Phase.PREDICT, horizons=config.horizons)
        if progress.phase is Phase.PREDICT and self._kept:
            return PhaseDecision(Phase.CORRECT, config.correct)
        return PhaseDecision(Phase.FULL, config.full)

    def feedback(self, outcome: PhaseOutcome) -> None:
        if outcome.jump is not None:
            self._kept = outcome.jump.verdict is Verdict.ACCEPTED

    def state_dict(self) -> dict[str, Any]:
        return {"kept": self._kept}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._kept = state["kept"]
