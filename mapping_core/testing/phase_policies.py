"""Checks of phase policies: which phase of training comes next, and for how long."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from mapping_core.components import PhasePolicyConfig
from mapping_core.contexts import PhasePolicyContext
from mapping_core.interfaces.phase_policy import (
    LEGAL_TRANSITIONS,
    JumpOutcome,
    Phase,
    PhaseDecision,
    PhaseOutcome,
    PhasePolicy,
    Progress,
    Verdict,
)
from mapping_core.testing.contract import Check, contract, expect
from mapping_core.testing.observing import equal, global_seed, nothing_drawn
from mapping_core.testing.worlds import PolicyWorld
from mapping_core.training.state import check_plain

#: Whether jumps are kept in a simulated run: always, never, every third.
FATES: tuple[tuple[bool, ...], ...] = ((True,), (False,), (True, False, False))


def build(component: PhasePolicyConfig, world: PolicyWorld, *, endless: bool = False) -> PhasePolicy:
    """Build a policy for a run of the world's length, or of a loader without a length."""
    return component.build(PhasePolicyContext(total_steps=None if endless else world.total_steps, seed=world.seed))


def simulate(
    policy: PhasePolicy, steps: int, *, fate: tuple[bool, ...] = (True,), start: int = 0
) -> Iterator[PhaseDecision]:
    """What a policy answers in a run whose loss falls, with jumps kept or not by `fate` in turn."""
    done, phase, jumps, jumped = start, None, 0, False
    while done < steps:
        progress = Progress(step=done, total_steps=steps, phase=phase, loss=None if phase is None else loss_at(done))
        answer = policy.next(progress)
        yield answer
        if jumped and answer.is_jump:  # which a run refuses, and which might never end
            return
        phase, jumped = answer.phase, answer.is_jump
        if answer.is_jump:
            verdict, jumps = Verdict.ACCEPTED if fate[jumps % len(fate)] else Verdict.REJECTED, jumps + 1
            jump = JumpOutcome(verdict=verdict, seconds=0.01, horizon=answer.horizons[0], before=1.0, after=1.0)
            policy.feedback(PhaseOutcome(phase=phase, steps=0, loss=None, seconds=0.01, jump=jump))
            continue
        count = min(steps - done if answer.steps is None else answer.steps, steps - done)
        done += count
        gain = None if answer.keep is None else (1.1 if fate[jumps % len(fate)] else 2.0)
        policy.feedback(
            PhaseOutcome(
                phase=phase, steps=count, loss=loss_at(done), seconds=0.01 * count, step_seconds=0.01, gain=gain
            )
        )


def loss_at(step: int) -> float:
    """The loss of the simulated run: it falls, with a ripple."""
    return math.exp(-step / 150) * (2 + 0.1 * math.sin(step))


@contract("return a PhasePolicy from build(), also where context.total_steps is None")
def builds(component: PhasePolicyConfig, world: PolicyWorld) -> None:
    """`build(context)` returns a `PhasePolicy`, for a run whose length is known and for one whose is not."""
    for endless in (False, True):
        policy = build(component, world, endless=endless)
        expect(isinstance(policy, PhasePolicy), f"build() returned {type(policy).__name__}")
        policy.next(Progress(step=0, total_steps=None if endless else world.total_steps, phase=None, loss=None))


@contract("return PhaseDecision(Phase.FULL, 20) or the like from next(); None as steps means to the end of the run")
def answers_a_decision(component: PhasePolicyConfig, world: PolicyWorld) -> None:
    """`next` answers a `PhaseDecision` that has no fault."""
    for fate in FATES:
        for answer in simulate(build(component, world), world.total_steps, fate=fate):
            expect(isinstance(answer, PhaseDecision), f"answered {answer!r}")
            expect(not answer.fault(), f"answered {answer.fault()}")


@contract("look at progress.phase: LEGAL_TRANSITIONS says what may follow, and after no phase WARMUP or FULL")
def transitions_are_legal(component: PhasePolicyConfig, world: PolicyWorld) -> None:
    """Each phase is one that may follow the last, whether jumps are kept or not, and no jump follows a jump."""
    for fate in FATES:
        last: Phase | None = None
        jumped = False
        for answer in simulate(build(component, world), world.total_steps, fate=fate):
            phase = answer.phase
            expect(not (jumped and answer.is_jump), "asks for a jump after a jump, with no step between them")
            jumped = answer.is_jump
            if last is None:
                expect(phase in (Phase.WARMUP, Phase.FULL), f"starts with {phase.name}")
            else:
                expect(phase in LEGAL_TRANSITIONS[last], f"asks for {phase.name} after {last.name}")
            last = phase


@contract("draw from a generator of the policy's own, seeded with context.seed")
def same_seed_same_phases(component: PhasePolicyConfig, world: PolicyWorld) -> None:
    """The same seed and outcomes give the same phases, whatever the global random state, which stays as it is."""
    runs = []
    for seed in (0, 1):
        with global_seed(seed), nothing_drawn("asking it"):
            runs.append(list(simulate(build(component, world), world.total_steps, fate=FATES[2])))
    expect(runs[0] == runs[1], "two runs with the same seed and outcomes have different phases")


@contract(
    "put all that next() looks at into state_dict(), as plain values and tensors, and take it back in load_state_dict"
)
def survives_a_restart(component: PhasePolicyConfig, world: PolicyWorld) -> None:
    """Stopped after any phase and loaded from its state, it goes on as if it had not been stopped."""
    for stop in (1, 2, 5):
        policy, twin = build(component, world), build(component, world)
        run, other = (simulate(each, world.total_steps, fate=FATES[2]) for each in (policy, twin))
        for _ in range(stop):
            next(run, None), next(other, None)
        state = policy.state_dict()
        check_plain(state, "its state")
        fresh = build(component, world)
        fresh.load_state_dict(state)
        expect(equal(fresh.state_dict(), state), "the state it gives is not the one it was loaded from")
        answers = [list(_rest(run, policy, fresh)), list(other)]
        expect(answers[0] == answers[1], f"stopped after {stop} phases and loaded, it goes on otherwise")


def _rest(run: Iterator[PhaseDecision], policy: PhasePolicy, fresh: PhasePolicy) -> Iterator[PhaseDecision]:
    """Go on with a simulated run, with another policy in the place of its own."""
    policy.next, policy.feedback = fresh.next, fresh.feedback  # type: ignore[method-assign]
    return run


#: What is checked of a phase policy, beside `common.CHECKS`.
CHECKS: tuple[Check[Any, Any], ...] = (
    builds,
    answers_a_decision,
    transitions_are_legal,
    same_seed_same_phases,
    survives_a_restart,
)
