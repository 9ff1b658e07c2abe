"""Jumps where a bandit expects them to pay."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from mapping_core import Phase, PhaseDecision, PhaseOutcome, PhasePolicy
from mapping_core.interfaces.phase_policy import JumpOutcome, Progress, Verdict
from mapping_plugin_phases._linucb import LinUCB
from mapping_plugin_phases._slope import Slope

if TYPE_CHECKING:
    from mapping_plugin_phases import Bandit


class BanditPolicy(PhasePolicy):
    """After every FULL phase, pulls the horizon whose bound is the highest and above 0, or does not jump.

    Not to jump is an arm whose reward is known: 0, since rewards are relative to FULL. A jump of paired gain g (0 if
    it was not kept) that took o seconds, after a FULL phase of T seconds in which ordinary training lowers the loss by
    r a second, gave (g - r o) / (r (T + o)): by what share faster the loss fell. The gain is the guard's: of averaged
    weights, on identical samples. So neither it nor r, which is fitted over many phases with the jumps' gains put
    back, takes a change of the noise in single losses for progress.
    """

    def __init__(self, config: Bandit) -> None:
        self._config = config
        self._bandit = LinUCB(arms=len(config.horizons), features=3, alpha=config.alpha, ridge=config.ridge)
        self._slope = Slope(config.window)
        self._baseline: float | None = None  # the loss of the warm-up
        self._loss: float | None = None
        self._gained = 0.0  # what kept jumps have lowered the loss by
        self._seconds = 0.0  # of the last FULL phase
        self._pulled: tuple[int, list[float]] | None = None
        self._kept: float | None = None  # what the last jump gained, if it was kept

    def next(self, progress: Progress) -> PhaseDecision:
        config = self._config
        if progress.phase is None:
            return PhaseDecision(Phase.WARMUP, config.warmup)
        if progress.phase is Phase.PREDICT and self._kept is not None:
            return PhaseDecision(Phase.CORRECT, config.correct)
        if progress.phase is Phase.FULL and self._slope.measured:
            context = self._context(progress)
            bounds = self._bandit.bounds(context)
            arm = max(range(len(bounds)), key=bounds.__getitem__)
            if bounds[arm] > 0.0:
                self._pulled = arm, context
                return PhaseDecision(Phase.PREDICT, horizons=(config.horizons[arm],))
        return PhaseDecision(Phase.FULL, config.full)

    def feedback(self, outcome: PhaseOutcome) -> None:
        if outcome.jump is not None:
            self._judge(outcome.jump)
            return
        if outcome.loss is None:
            return
        self._loss = outcome.loss
        if outcome.phase is Phase.WARMUP:
            self._baseline = outcome.loss
        elif outcome.phase is Phase.FULL:
            self._seconds = outcome.seconds
            self._slope.add(steps=outcome.steps, seconds=outcome.seconds, loss=outcome.loss + self._gained)

    def _judge(self, jump: JumpOutcome) -> None:
        if jump.verdict is Verdict.ROLLED_BACK:
            self._gained -= self._kept or 0.0
            self._kept = None
            self._learn(-1.0)
            return
        self._kept = None
        if not jump.probed and jump.verdict is not Verdict.NON_FINITE:
            return
        gain = 0.0
        if jump.verdict is Verdict.ACCEPTED and jump.before is not None and jump.after is not None:
            gain = self._kept = jump.before - jump.after
            self._gained += gain
        self._learn(advantage(gain, jump.seconds, self._seconds, self._slope.decrease))

    def _learn(self, reward: float) -> None:
        if self._pulled is not None:
            arm, context = self._pulled
            self._bandit.learn(arm, context, reward)

    def _context(self, progress: Progress) -> list[float]:
        """A constant, how far the run is, and by how many e-folds the loss has fallen since the warm-up."""
        done = progress.step / progress.total_steps if progress.total_steps else 0.0
        fallen = 0.0
        if self._baseline is not None and self._loss is not None and self._baseline > 0.0 and self._loss > 0.0:
            fallen = max(-3.0, min(3.0, math.log(self._baseline / self._loss)))
        return [1.0, done, fallen]

    def state_dict(self) -> dict[str, Any]:
        return {
            "bandit": self._bandit.state_dict(),
            "slope": self._slope.state_dict(),
            "baseline": self._baseline,
            "loss": self._loss,
            "gained": self._gained,
            "seconds": self._seconds,
            "pulled": None if self._pulled is None else [self._pulled[0], list(self._pulled[1])],
            "kept": self._kept,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._bandit.load_state_dict(state["bandit"])
        self._slope.load_state_dict(state["slope"])
        self._baseline, self._loss = state["baseline"], state["loss"]
        self._gained, self._seconds, self._kept = state["gained"], state["seconds"], state["kept"]
        self._pulled = None if state["pulled"] is None else (state["pulled"][0], list(state["pulled"][1]))


def advantage(gain: float, overhead: float, training: float, decrease: float) -> float:
    """By what share faster than ordinary training the loss fell, from -1 to 1.

    `gain` came of `overhead` seconds after `training` seconds of steps, which lower the loss by `decrease` a second.
    Where that is 0, every gain is 1 and none costs its share of the time.

    >>> advantage(0.5, overhead=1.0, training=3.0, decrease=0.25)
    0.25
    >>> advantage(0.0, overhead=1.0, training=3.0, decrease=0.25), advantage(0.5, 1.0, 3.0, 0.0)
    (-0.25, 1.0)
    """
    total = training + overhead
    if total <= 0.0:
        return 0.0
    if decrease > 0.0:
        return max(-1.0, min(1.0, (gain - decrease * overhead) / (decrease * total)))
    return 1.0 if gain > 0.0 else -overhead / total
