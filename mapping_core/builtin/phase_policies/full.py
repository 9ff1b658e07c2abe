"""The phase policy of ordinary training."""

from __future__ import annotations

from mapping_core.interfaces.phase_policy import Phase, PhaseDecision, PhasePolicy, Progress


class FullPolicy(PhasePolicy):
    """One FULL phase to the end of the run."""

    def next(self, progress: Progress) -> PhaseDecision:
        return PhaseDecision(Phase.FULL)
