"""Phase policies: asked when a phase ends, told what it did, and held to the legal transitions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from attrs import define

import mapping_core.builtin
from mapping_core import (
    MappingModel,
    MappingTrainer,
    Phase,
    PhasePolicy,
    PhasePolicyConfig,
    PluginError,
    Registry,
    hookimpl,
)
from mapping_core.builtin.phase_policies import Full
from mapping_core.contexts import PhasePolicyContext
from mapping_core.interfaces.callback import Callback
from mapping_core.interfaces.phase_policy import (
    LEGAL_TRANSITIONS,
    JumpOutcome,
    PhaseDecision,
    PhaseOutcome,
    Progress,
    Verdict,
)
from mapping_core.training.phases import PhaseRunner
from tests import targets


class Scripted(PhasePolicy):
    """Follows a script, and keeps what it is asked and told."""

    def __init__(self, script: Sequence[tuple[Any, int | None] | PhaseDecision]) -> None:
        self.script = [each if isinstance(each, PhaseDecision) else PhaseDecision(*each) for each in script]
        self.asked: list[Progress] = []
        self.told: list[PhaseOutcome] = []

    def next(self, progress: Progress) -> PhaseDecision:
        self.asked.append(progress)
        return self.script.pop(0)

    def feedback(self, outcome: PhaseOutcome) -> None:
        self.told.append(outcome)


def drive(policy: PhasePolicy, losses: list[float]) -> list[tuple[Phase, bool]]:
    """Run one step a loss and return the phase of each, and whether it was announced there."""
    announced: list[Phase] = []
    runner = PhaseRunner(policy, name="scripted", total_steps=len(losses), announce=announced.append)
    made = []
    for step, loss in enumerate(losses):
        known = len(announced)
        phase = runner.begin_step(step)
        made.append((phase, len(announced) > known))
        runner.end_step(torch.tensor(loss))
    runner.finish()
    return made


def test_phases_last_as_long_as_asked() -> None:
    """Each phase lasts its steps and is announced once; the policy sees where the run stands."""
    policy = Scripted([(Phase.WARMUP, 2), (Phase.FULL, 1), (Phase.FULL, 2)])
    made = drive(policy, [5.0, 4.0, 3.0, 2.0, 1.0])
    assert [phase.name for phase, _ in made] == ["WARMUP", "WARMUP", "FULL", "FULL", "FULL"]
    assert [begins for _, begins in made] == [True, False, True, False, False]
    assert [(p.step, p.total_steps, p.phase, p.loss) for p in policy.asked] == [
        (0, 5, None, None),
        (2, 5, Phase.WARMUP, 4.0),
        (3, 5, Phase.FULL, 3.0),
    ]


def test_policy_is_told_each_phase_once() -> None:
    """Feedback gives steps, mean loss and seconds of every phase, the last and a cut one included."""
    policy = Scripted([(Phase.WARMUP, 2), (Phase.FULL, 10)])
    drive(policy, [5.0, 3.0, 2.0, 1.0, 0.0])
    assert [(o.phase, o.steps, o.loss, o.jump) for o in policy.told] == [
        (Phase.WARMUP, 2, 4.0, None),
        (Phase.FULL, 3, 1.0, None),
    ]
    assert all(0 <= outcome.seconds < 60 for outcome in policy.told)


def test_a_phase_without_end() -> None:
    """A phase of length None lasts to the end, and the policy is asked once."""
    policy = Scripted([(Phase.FULL, None)])
    assert [phase for phase, _ in drive(policy, [1.0] * 7)] == [Phase.FULL] * 7
    assert len(policy.asked) == 1


@pytest.mark.parametrize("previous", Phase)
@pytest.mark.parametrize("phase", Phase)
def test_only_legal_transitions(previous: Phase, phase: Phase) -> None:
    """After each phase exactly the legal ones are accepted; others name both."""

    def of(phase: Phase) -> PhaseDecision:
        return PhaseDecision(phase, 1, keep=0.5 if phase is Phase.PREDICT else None)

    way: dict[Phase, list[Phase]] = {phase: [] for phase in Phase}
    way |= {Phase.PREDICT: [Phase.FULL], Phase.CORRECT: [Phase.FULL, Phase.PREDICT]}
    script = Scripted([of(each) for each in (*way[previous], previous, phase)])
    losses = [1.0] * len(script.script)
    if phase in LEGAL_TRANSITIONS[previous]:
        assert drive(script, losses)[-1][0] is phase
    else:
        with pytest.raises(PluginError, match=f"'scripted' asked for {phase.name} after {previous.name}"):
            drive(script, losses)


@pytest.mark.parametrize("phase", [Phase.PREDICT, Phase.CORRECT])
def test_first_phase(phase: Phase) -> None:
    """Nothing can be predicted or corrected before a step has been made."""
    with pytest.raises(PluginError, match=f"'scripted' asked for {phase.name} before any step"):
        drive(Scripted([PhaseDecision(phase, 1, keep=0.5)]), [1.0])


@pytest.mark.parametrize(
    ("decision", "fault"),
    [
        (PhaseDecision(Phase.FULL, 3, horizons=(1,)), "a FULL phase has neither horizons nor keep"),
        (PhaseDecision(Phase.PREDICT, 3), "a PREDICT phase has either horizons or keep"),
        (PhaseDecision(Phase.PREDICT, 3, (1,), 0.5), "a PREDICT phase has either horizons or keep"),
        (PhaseDecision(Phase.PREDICT, 3, (1,)), "a PREDICT phase of 3 steps is no jump"),
        (PhaseDecision(Phase.PREDICT, None, (5, 0)), "a jump over 0 steps"),
        (PhaseDecision(Phase.PREDICT, 3, keep=1.0), "a share of 1.0 to keep, which must lie between 0 and 1"),
    ],
)
def test_decisions_that_say_nothing(decision: PhaseDecision, fault: str) -> None:
    """A decision whose parts do not fit is refused, with the policy's name."""
    assert decision.fault() == fault
    with pytest.raises(PluginError, match="phase policy 'scripted' asked for a"):
        drive(Scripted([(Phase.FULL, 1), decision]), [1.0, 1.0])


def test_a_jump_is_made_once_and_takes_no_step() -> None:
    """A jump's phase is announced and reported, has no step, and the steps after it are those of the next phase."""
    made: list[tuple[int, ...]] = []

    def jump(horizons: tuple[int, ...]) -> JumpOutcome:
        made.append(horizons)
        return JumpOutcome(verdict=Verdict.ACCEPTED, horizon=5, seconds=0.25)

    policy = Scripted([(Phase.FULL, 1), PhaseDecision(Phase.PREDICT, horizons=(2, 5)), (Phase.CORRECT, 2)])
    announced: list[Phase] = []
    runner = PhaseRunner(policy, name="scripted", total_steps=3, jump=jump, announce=announced.append)
    for step in range(3):
        runner.begin_step(step)
        runner.end_step(torch.tensor(1.0))
    runner.finish()
    assert made == [(2, 5)]
    assert announced == [Phase.FULL, Phase.PREDICT, Phase.CORRECT]
    assert [(each.phase, each.steps, each.loss) for each in policy.told] == [
        (Phase.FULL, 1, 1.0),
        (Phase.PREDICT, 0, None),
        (Phase.CORRECT, 2, 1.0),
    ]
    assert policy.told[1].jump == JumpOutcome(verdict=Verdict.ACCEPTED, horizon=5, seconds=0.25)
    assert runner.outcomes == policy.told


def test_no_jump_after_a_jump() -> None:
    """Two jumps with no step between them are one too many: the second would be made from where nothing was seen."""
    jump = PhaseDecision(Phase.PREDICT, horizons=(2,))
    with pytest.raises(PluginError, match="'scripted' asked for a jump after a jump"):
        drive(Scripted([(Phase.FULL, 1), jump, jump]), [1.0, 1.0])


def test_state_goes_on_inside_a_phase() -> None:
    """A runner that is loaded inside a sampled phase ends it where the first one would have."""
    script = [PhaseDecision(Phase.FULL, 1), PhaseDecision(Phase.PREDICT, 3, keep=0.5), PhaseDecision(Phase.FULL)]
    runner = PhaseRunner(Scripted(script), name="scripted", total_steps=9)
    for step in range(2):
        runner.begin_step(step)
        runner.end_step(torch.tensor(float(step)), gain=1.5)
    policy = Scripted(script[2:])
    twin = PhaseRunner(policy, name="scripted", total_steps=9)
    twin.load_state_dict(runner.state_dict())
    assert (twin.phase, twin.keep, twin.outcomes) == (Phase.PREDICT, 0.5, runner.outcomes)
    for step in range(2, 4):
        assert twin.begin_step(step) is Phase.PREDICT
        twin.end_step(torch.tensor(float(step)), gain=2.0)
    assert twin.begin_step(4) is Phase.FULL
    assert [(each.steps, each.loss, each.gain) for each in policy.told] == [(3, 2.0, 5.5 / 3)]


@pytest.mark.parametrize("length", [0, -1])
def test_a_phase_has_a_step(length: int) -> None:
    """A phase of no steps would never end the asking, and is refused."""
    with pytest.raises(PluginError, match=f"'scripted' asked for a FULL phase of {length} steps"):
        drive(Scripted([(Phase.FULL, length)]), [1.0])


def test_full_is_ordinary_training() -> None:
    """The policy of core asks for one FULL phase to the end, and has no state."""
    policy = Full().build(PhasePolicyContext(total_steps=10, seed=0))
    assert policy.next(Progress(step=0, total_steps=10, phase=None, loss=None)) == PhaseDecision(Phase.FULL)
    assert policy.state_dict() == {}
    assert policy.load_state_dict({}) is None  # type: ignore[func-returns-value]


@define(frozen=True, kw_only=True)
class Alternating(PhasePolicyConfig):
    """WARMUP for `first` steps, then FULL in phases of `length`."""

    name = "alternating"
    first: int = 2
    length: int = 3
    goes_back: bool = False

    def build(self, context: PhasePolicyContext) -> PhasePolicy:
        after = (Phase.WARMUP if self.goes_back else Phase.FULL, self.length)
        return Scripted([(Phase.WARMUP, self.first), (Phase.FULL, self.length), *[after] * 50])


class Plugin:
    """Registers the policy above."""

    @staticmethod
    @hookimpl
    def mapping_phase_policies() -> list[type[PhasePolicyConfig]]:
        """Return the one policy."""
        return [Alternating]


class Watch(Callback):
    """Keeps the phase of each step and each announced change."""

    def __init__(self) -> None:
        self.steps: list[str] = []
        self.changes: list[tuple[int, str]] = []

    def on_batch_end(self, trainer: MappingTrainer, record: Any) -> None:
        self.steps.append(record.phase.name)

    def on_phase_change(self, trainer: MappingTrainer, phase: Phase) -> None:
        self.changes.append((trainer.step, phase.name))


def trainer_with(policy: object, watch: Watch) -> MappingTrainer:
    """Return a trainer of two epochs of three steps."""
    import mapping_plugin_slvt

    registry = Registry.of(mapping_core.builtin, mapping_plugin_slvt, Plugin)
    model = MappingModel(targets.mlp(), 16, "slvt", registry=registry)
    return MappingTrainer(
        model,
        targets.loader(),
        prediction={"policy": policy},
        callbacks=[watch],
        max_epochs=2,
        seed=0,
        registry=registry,
        accelerator="cpu",
        progress=False,
    )


def test_a_policy_in_training() -> None:
    """A third-party policy's phases reach records and callbacks, across epochs."""
    watch = Watch()
    trainer_with({"type": "alternating", "length": 2}, watch).fit()
    assert watch.steps == ["WARMUP"] * 2 + ["FULL"] * 4
    assert watch.changes == [(0, "WARMUP"), (2, "FULL")]


def test_an_illegal_policy_in_training() -> None:
    """A policy that goes from FULL back to WARMUP ends the run with both names, after the steps before."""
    watch = Watch()
    with pytest.raises(PluginError, match="phase policy 'alternating' asked for WARMUP after FULL"):
        trainer_with(Alternating(goes_back=True), watch).fit()
    assert watch.steps == ["WARMUP"] * 2 + ["FULL"] * 3


@pytest.mark.parametrize("answer", [Phase.FULL, (Phase.FULL, 3), None])
def test_an_answer_of_another_form(answer: Any) -> None:
    """A policy whose answer is no decision is named."""

    class Odd(PhasePolicy):
        def next(self, progress: Progress) -> Any:
            return answer

    runner = PhaseRunner(Odd(), name="odd", total_steps=3)
    with pytest.raises(PluginError, match="phase policy 'odd' must answer a PhaseDecision"):
        runner.begin_step(0)
