"""`bandit`: horizons chosen by what they gave, and no jump where that is nothing."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
import torch

from mapping_core import Phase, PhaseDecision, PhaseOutcome
from mapping_core.contexts import PhasePolicyContext
from mapping_core.interfaces.phase_policy import JumpOutcome, Progress, Verdict
from mapping_plugin_phases import Bandit
from mapping_plugin_phases._bandit import BanditPolicy, advantage
from mapping_plugin_phases._linucb import LinUCB
from mapping_plugin_phases._slope import Slope

SECONDS = 2.0  # of a FULL phase
OVERHEAD = 0.2


def policy(**options: Any) -> BanditPolicy:
    """One with these options, in a run of 10,000 steps."""
    built = Bandit(**options).build(PhasePolicyContext(total_steps=10_000, seed=0))
    assert isinstance(built, BanditPolicy)
    return built


class Run:
    """A run whose loss falls by 0.01 a FULL phase, with noise, and by `gains` at jumps, where they are positive."""

    def __init__(self, bandit: BanditPolicy, gains: dict[int, float], seed: int = 0) -> None:
        self.bandit, self.gains = bandit, gains
        self.loss, self.step = 3.0, 0
        self.phase: Phase | None = None
        self.noise = torch.Generator().manual_seed(seed)
        self.decisions: list[PhaseDecision] = []

    def phases(self, count: int) -> list[PhaseDecision]:
        """Go on for so many phases, and give their decisions."""
        for _ in range(count):
            progress = Progress(step=self.step, total_steps=10_000, phase=self.phase, loss=self.loss)
            decision = self.bandit.next(progress)
            assert not decision.fault()
            self.decisions.append(decision)
            self.phase = decision.phase
            self.bandit.feedback(self._outcome(decision))
        return self.decisions[-count:]

    def _outcome(self, decision: PhaseDecision) -> PhaseOutcome:
        if not decision.is_jump:
            assert decision.steps is not None
            self.step += decision.steps
            self.loss -= 0.01 * decision.steps / 20
            seen = self.loss + 0.002 * float(torch.randn((), generator=self.noise))
            return PhaseOutcome(
                phase=decision.phase, steps=decision.steps, loss=seen, seconds=SECONDS * decision.steps / 20
            )
        gain = self.gains[decision.horizons[0]]
        jump = JumpOutcome(
            verdict=Verdict.ACCEPTED if gain > 0 else Verdict.REJECTED,
            seconds=OVERHEAD,
            horizon=decision.horizons[0],
            before=self.loss,
            after=self.loss - gain,
        )
        self.loss -= max(0.0, gain)
        return PhaseOutcome(phase=Phase.PREDICT, steps=0, loss=None, seconds=OVERHEAD, jump=jump)


def jumps(decisions: list[PhaseDecision]) -> Counter[int]:
    """How often each horizon was asked for."""
    return Counter(each.horizons[0] for each in decisions if each.is_jump)


def test_no_jump_before_ordinary_training_is_measured() -> None:
    """FULL phases fill the window first, since rewards are relative to them."""
    decisions = Run(policy(window=200), dict.fromkeys((10, 20, 40, 60, 80), 0.1)).phases(12)
    assert [each.phase for each in decisions] == [Phase.WARMUP, *[Phase.FULL] * 10, Phase.PREDICT]


def test_it_settles_for_the_arm_that_pays() -> None:
    """Of three horizons, the one that gains most is asked for most, by far, and CORRECT follows it."""
    run = Run(policy(horizons=(10, 40, 80)), {10: -0.1, 40: 0.008, 80: -0.1})
    run.phases(150)
    late = run.phases(100)
    assert set(jumps(late)) == {40}
    assert {b.phase for a, b in pairwise(late) if a.is_jump} == {Phase.CORRECT}


@pytest.mark.parametrize("gain", [-0.1, 0.0001])
def test_it_settles_for_no_jump_where_none_pays(gain: float) -> None:
    """Where jumps are rejected, or gain less than ordinary steps in their seconds, hardly any is asked for."""
    run = Run(policy(horizons=(10, 40)), {10: gain, 40: gain})
    early = jumps(run.phases(100)).total()
    run.phases(300)
    late = jumps(run.phases(100)).total()
    assert early >= 2
    assert late <= 2


@pytest.mark.parametrize(
    ("gain", "training", "decrease", "reward"),
    [
        (0.02, 9.0, 0.01, 0.1),
        (0.0, 9.0, 0.01, -0.1),
        (5.0, 9.0, 0.01, 1.0),
        (0.01, 9.0, 0.01, 0.0),
        (0.1, 9.0, 0.0, 1.0),
        (0.0, 9.0, 0.0, -0.1),
    ],
)
def test_rewards_are_net_and_relative(gain: float, training: float, decrease: float, reward: float) -> None:
    """A jump of one second gives what it gains beyond that second's ordinary decrease, in units of the cycle's."""
    assert advantage(gain, 1.0, training, decrease) == pytest.approx(reward)


def test_no_time_no_reward() -> None:
    """Phases that took no measurable time say nothing."""
    assert advantage(0.1, 0.0, 0.0, 0.0) == 0.0


def test_a_slope_is_told_from_noise() -> None:
    """Losses that only scatter have no decrease; a steady fall has its own; few points have none."""
    scatter, falling = Slope(window=100), Slope(window=100)
    for index in range(10):
        scatter.add(steps=20, seconds=1.0, loss=1.0 + (0.1 if index % 2 else -0.1))
        falling.add(steps=20, seconds=1.0, loss=1.0 - 0.03 * index)
        assert falling.measured is (index >= 4)
    assert scatter.decrease == 0.0
    assert falling.decrease == pytest.approx(0.03)
    few = Slope(window=20)
    for index in range(3):
        few.add(steps=20, seconds=1.0, loss=1.0 - index)
    assert (few.measured, few.decrease) == (False, 0.0)
    still = Slope(window=20)
    for index in range(4):
        still.add(steps=20, seconds=0.0, loss=1.0 - index)
    assert still.decrease == 0.0


def test_linucb_is_its_formula() -> None:
    """Bounds are those of algorithm 1, with the matrices of the observations written out."""
    bandit = LinUCB(arms=2, features=2, alpha=0.7, ridge=1.5)
    seen = [([1.0, 0.5], 0.3), ([1.0, -2.0], -0.1), ([0.5, 1.0], 0.8)]
    for context, reward in seen:
        bandit.learn(1, context, reward)
    x = torch.tensor([1.0, 0.2], dtype=torch.float64)
    design = torch.tensor([context for context, _ in seen], dtype=torch.float64)
    rewards = torch.tensor([reward for _, reward in seen], dtype=torch.float64)
    inverse = torch.linalg.inv(1.5 * torch.eye(2, dtype=torch.float64) + design.T @ design)
    expected = (inverse @ design.T @ rewards) @ x + 0.7 * (x @ inverse @ x).sqrt()
    unknown = 0.7 * (x @ x / 1.5).sqrt()
    assert bandit.bounds([1.0, 0.2]) == pytest.approx([float(unknown), float(expected)])


def test_a_jump_that_was_undone_is_the_worst_reward() -> None:
    """Undoing takes the gain back, and teaches the arm -1."""
    run = Run(policy(horizons=(40,), window=20), {40: 0.05})
    run.phases(20)
    while not run.phases(1)[0].is_jump:
        pass
    bandit = run.bandit
    kept, before = bandit.state_dict(), bandit._bandit.bounds([1.0, 0.0, 0.0])
    undone = JumpOutcome(verdict=Verdict.ROLLED_BACK)
    bandit.feedback(PhaseOutcome(phase=Phase.PREDICT, steps=0, loss=None, seconds=0.1, jump=undone))
    assert bandit.state_dict()["gained"] == pytest.approx(kept["gained"] - 0.05)
    assert bandit._bandit.bounds([1.0, 0.0, 0.0])[0] < before[0]
    assert bandit.next(Progress(step=1, total_steps=None, phase=Phase.PREDICT, loss=1.0)).phase is Phase.FULL


@pytest.mark.parametrize("verdict", [Verdict.WAITING, Verdict.NO_COMPUTE, Verdict.NO_PROPOSAL])
def test_what_was_not_tried_teaches_nothing(verdict: Verdict) -> None:
    """An arm that the guard did not let try has no reward."""
    run = Run(policy(horizons=(40,), window=20), {40: 0.05})
    run.phases(20)
    before = run.bandit.state_dict()
    jump = JumpOutcome(verdict=verdict)
    run.bandit.feedback(PhaseOutcome(phase=Phase.PREDICT, steps=0, loss=None, seconds=0.1, jump=jump))
    torch.testing.assert_close(run.bandit.state_dict()["bandit"], before["bandit"])


@pytest.mark.parametrize("count", [0, 1, 5, 30, 61])
def test_state(count: int) -> None:
    """A policy that takes over a state answers as the other does, for as long as one looks."""
    gains = {10: 0.01, 20: -0.1, 40: 0.05, 60: -0.1, 80: 0.2}
    run = Run(policy(window=60), gains)
    if count:
        run.phases(count)
    twin = Run(policy(window=60), gains)
    twin.bandit.load_state_dict(run.bandit.state_dict())
    twin.loss, twin.step, twin.phase = run.loss, run.step, run.phase
    twin.noise.set_state(run.noise.get_state())
    assert run.phases(60) == twin.phases(60)
