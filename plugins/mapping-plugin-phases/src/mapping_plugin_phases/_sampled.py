"""Importance sampling behind a gate that is measured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mapping_core import Phase, PhaseDecision, PhaseOutcome, PhasePolicy
from mapping_core.interfaces.phase_policy import Progress

if TYPE_CHECKING:
    from mapping_plugin_phases import Sampled


class SampledPolicy(PhasePolicy):
    """Times ordinary steps, then sampled ones, then does what was better for a while."""

    def __init__(self, config: Sampled) -> None:
        self._config = config
        self._plain: float | None = None
        self._sampled: float | None = None
        self._gain: float | None = None
        self._decided = False

    @property
    def pays(self) -> bool:
        """Whether sampling was measured to pay; false before it was measured."""
        if self._plain is None or self._sampled is None or self._gain is None:
            return False
        return self._config.keep * self._gain * self._plain > self._config.margin * self._sampled

    def next(self, progress: Progress) -> PhaseDecision:
        config = self._config
        if progress.phase is None:
            return PhaseDecision(Phase.WARMUP, config.warmup)
        if self._decided or self._plain is None:
            self._decided, self._plain, self._sampled, self._gain = False, None, None, None
            return PhaseDecision(Phase.FULL, config.measure)
        if self._sampled is None:
            return PhaseDecision(Phase.PREDICT, config.measure, keep=config.keep)
        self._decided = True
        if self.pays:
            return PhaseDecision(Phase.PREDICT, config.recheck, keep=config.keep)
        return PhaseDecision(Phase.FULL, config.recheck)

    def feedback(self, outcome: PhaseOutcome) -> None:
        if self._decided or outcome.phase is Phase.WARMUP:
            return
        if outcome.phase is Phase.FULL:
            self._plain = outcome.step_seconds
        else:
            self._sampled, self._gain = outcome.step_seconds, outcome.gain

    def state_dict(self) -> dict[str, Any]:
        return {"plain": self._plain, "sampled": self._sampled, "gain": self._gain, "decided": self._decided}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._plain, self._sampled = state["plain"], state["sampled"]
        self._gain, self._decided = state["gain"], state["decided"]
