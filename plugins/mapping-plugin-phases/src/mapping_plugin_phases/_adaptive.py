"""Jumps as often and as far as the last ones deserve."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mapping_core import Phase, PhaseDecision, PhaseOutcome, PhasePolicy
from mapping_core.interfaces.phase_policy import JumpOutcome, Progress, Verdict

if TYPE_CHECKING:
    from mapping_plugin_phases import Adaptive

#: Where a run that has tried no jump yet stands: between never and always.
_UNKNOWN = 0.5


class AdaptivePolicy(PhasePolicy):
    """Keeps a confidence between 0 and 1: a fading mean of what was judged of the last jumps."""

    def __init__(self, config: Adaptive) -> None:
        self._config = config
        self.confidence = _UNKNOWN
        self._kept = False

    @property
    def full(self) -> int:
        """Steps of a FULL phase: few in confidence, many without it."""
        least, most = self._config.full
        return _between(most, least, self.confidence)

    @property
    def horizons(self) -> tuple[int, ...]:
        """What a jump may reach for: all that confidence allows, and half of it."""
        least, most = self._config.reach
        reach = _between(least, most, self.confidence)
        return tuple(sorted({max(1, reach // 2), reach}))

    def next(self, progress: Progress) -> PhaseDecision:
        if progress.phase is None:
            return PhaseDecision(Phase.WARMUP, self._config.warmup)
        if progress.phase is Phase.FULL:
            return PhaseDecision(Phase.PREDICT, horizons=self.horizons)
        if progress.phase is Phase.PREDICT and self._kept:
            return PhaseDecision(Phase.CORRECT, self._config.correct)
        return PhaseDecision(Phase.FULL, self.full)

    def feedback(self, outcome: PhaseOutcome) -> None:
        jump = outcome.jump
        if jump is None:
            return
        self._kept = jump.verdict is Verdict.ACCEPTED
        deserved = _deserved(jump)
        if deserved is not None:
            self.confidence += self._config.weight * (deserved - self.confidence)

    def state_dict(self) -> dict[str, Any]:
        return {"confidence": self.confidence, "kept": self._kept}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.confidence, self._kept = state["confidence"], state["kept"]


def _deserved(jump: JumpOutcome) -> float | None:
    """1 for a kept jump that did what was forecast, 0 for one not kept, between them by the error; None: not judged."""
    if jump.verdict in (Verdict.NO_PROPOSAL, Verdict.WAITING, Verdict.NO_COMPUTE):
        return None
    if jump.verdict is not Verdict.ACCEPTED:
        return 0.0
    if jump.forecast is None or jump.before is None or jump.after is None:
        return 1.0
    error, change = abs(jump.after - jump.forecast), abs(jump.after - jump.before)
    return change / (change + error) if change else 0.0


def _between(first: int, last: int, share: float) -> int:
    """Between two lengths in equal ratios."""
    length: float = first * (last / first) ** share
    return round(length)
