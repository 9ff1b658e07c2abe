"""Phase policies: asked when a phase ends, told what it did, and held to the legal transitions."""

from __future__ import annotations

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
from mapping_core.interfaces.phase_policy import LEGAL_TRANSITIONS, PhaseOutcome, Progress
from mapping_core.training.phases import PhaseRunner
from tests import targets


class Scripted(PhasePolicy):
    """Follows a script, and keeps what it is asked and told."""

    def __init__(self, script: list[tuple[Any, int | None]]) -> None:
        self.script = list(script)
        self.asked: list[Progress] = []
        self.told: list[PhaseOutcome] = []

    def next(self, progress: Progress) -> tuple[Phase, int | None]:
        self.asked.append(progress)
        return self.script.pop(0)

    def feedback(self, outcome: PhaseOutcome) -> None:
        self.told.append(outcome)


def drive(policy: PhasePolicy, losses: list[float]) -> list[tuple[Phase, bool]]:
    """Run one step a loss and return what `begin_step` gave at each."""
    runner = PhaseRunner(policy, name="scripted", total_steps=len(losses))
    made = []
    for step, loss in enumerate(losses):
        made.append(runner.begin_step(step))
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
    assert [(o.phase, o.steps, o.loss, o.accepted) for o in policy.told] == [
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
    """After an ordinary phase exactly the legal ones that this trainer runs are accepted; others name both."""
    ordinary = {Phase.WARMUP, Phase.FULL}
    if previous not in ordinary:
        with pytest.raises(PluginError, match=f"asked for {previous.name}, which this version of the trainer"):
            drive(Scripted([(previous, 1)]), [1.0])
        return
    script = Scripted([(previous, 1), (phase, 1)])
    if phase not in LEGAL_TRANSITIONS[previous]:
        with pytest.raises(PluginError, match=f"'scripted' asked for {phase.name} after {previous.name}"):
            drive(script, [1.0, 1.0])
    elif phase not in ordinary:
        with pytest.raises(PluginError, match=f"asked for {phase.name}, which this version"):
            drive(script, [1.0, 1.0])
    else:
        assert drive(script, [1.0, 1.0])[1][0] is phase


@pytest.mark.parametrize("length", [0, -1])
def test_a_phase_has_a_step(length: int) -> None:
    """A phase of no steps would never end the asking, and is refused."""
    with pytest.raises(PluginError, match=f"'scripted' asked for a FULL phase of {length} steps"):
        drive(Scripted([(Phase.FULL, length)]), [1.0])


def test_full_is_ordinary_training() -> None:
    """The policy of core asks for one FULL phase to the end, and has no state."""
    policy = Full().build(PhasePolicyContext(total_steps=10, seed=0))
    assert policy.next(Progress(step=0, total_steps=10, phase=None, loss=None)) == (Phase.FULL, None)
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
        phase_policy=policy,  # type: ignore[arg-type]
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


@pytest.mark.parametrize("answer", [Phase.FULL, ("full", 3), (Phase.FULL, 2.0), (Phase.FULL, True), None])
def test_an_answer_of_another_form(answer: Any) -> None:
    """A policy whose answer is not a phase and a length is named."""

    class Odd(PhasePolicy):
        def next(self, progress: Progress) -> Any:
            return answer

    runner = PhaseRunner(Odd(), name="odd", total_steps=3)
    with pytest.raises(PluginError, match=r"phase policy 'odd' must answer \(Phase, steps or None\)"):
        runner.begin_step(0)
