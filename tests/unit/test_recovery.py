"""Divergence in a run: each fault is injected, and what answers it is seen to act."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from mapping_core import DivergenceError, GuardConfig, MappingModel, MappingTrainer, PredictionConfig, Thresholds
from mapping_core.builtin import Checkpoint
from mapping_core.builtin.callbacks.progress import ProgressCallback
from mapping_core.interfaces.phase_policy import Phase, Verdict
from mapping_core.training.checkpoint import checkpoints_in
from mapping_core.training.divergence import DivergenceLevel, DivergenceMonitor, DivergenceReport, RecoveryAction
from tests import predictive, targets
from tests.predictive import Cycle, Extrapolate, weights
from tests.unit.test_jumps import REGISTRY, NanAt, Watch, model_of, noisy, state_of, trainer_of, verdicts

THRESHOLDS = Thresholds(warmup=4, window=4)
#: Nothing but what is not finite, and gradients, is far enough from these to be a signal.
DEAF = Thresholds(warmup=4, window=4, loss_sigmas=1e6, gradient_low=1e-9)


class Scripted(DivergenceMonitor):
    """Answers what a test wrote down, by step."""

    script: dict[int, RecoveryAction]

    def observe(self, *, step: int, **values: Any) -> DivergenceReport:
        return DivergenceReport(step=step, signals={}, action=self.script.pop(step, RecoveryAction.CONTINUE))


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> dict[int, RecoveryAction]:
    """Actions by step, which the monitor will answer, each once."""
    monkeypatch.setattr(Scripted, "script", {}, raising=False)
    monkeypatch.setattr("mapping_core.training.recovery.DivergenceMonitor", Scripted)
    return Scripted.script


def watched(
    model: nn.Module, *, monitor: Thresholds = THRESHOLDS, policy: Any = "full", **options: Any
) -> tuple[MappingTrainer, Watch]:
    """A trainer that watches itself; its policy makes no jumps unless it is another."""
    prediction = PredictionConfig(
        policy=policy,
        dynamics=None if policy == "full" else Extrapolate(),
        guard=GuardConfig(**{**predictive.FREE, "tau": 100.0, "risk": 1000.0}),
        monitor=monitor,
    )
    return trainer_of(model, None, prediction=prediction, schedule="constant", warmup=0.0, **options)


def test_a_calm_run_is_left_alone() -> None:
    """A monitor that sees nothing changes no bit of a run."""
    plain, seen = trainer_of(model_of(True), None, schedule="constant", warmup=0.0)
    plain.fit()
    guarded, watch = watched(model_of(True), monitor=DEAF)
    assert guarded.fit().recoveries == []
    assert watch.losses == seen.losses
    for ours, theirs in zip(state_of(guarded), state_of(plain), strict=True):
        assert all(map(torch.equal, ours, theirs))


@pytest.mark.parametrize("mapped", [True, False])
def test_a_batch_is_skipped(mapped: bool) -> None:
    """One NaN batch is left out: what trains, moments and running statistics are those of before it."""
    network = nn.Sequential(*noisy(), NanAt([6]))
    model = MappingModel(network, 16, "slvt", registry=REGISTRY) if mapped else network
    trainer, watch = watched(model, monitor=DEAF)
    history = trainer.fit()
    assert [each.action for each in history.recoveries] == [RecoveryAction.SKIP_BATCH]
    assert torch.equal(watch.after[5], watch.before[5])
    assert trainer.step == 23
    assert all(bool(value.isfinite().all()) for value in trainer.model.state_dict().values())


class LoudAt(nn.Module):
    """Multiplies its gradient by 1e6 on the calls of a list."""

    def __init__(self, calls: list[int]) -> None:
        super().__init__()
        self.calls, self.count = calls, 0

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        return x if self.count not in self.calls else x * 1e6 - (x * 1e6 - x).detach()


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "16-mixed"])
def test_a_gradient_that_explodes_is_not_stepped_with(precision: str) -> None:
    """A gradient of a million times the usual norm reaches no weight, under a scaler too, and training goes on."""
    network = nn.Sequential(noisy(), LoudAt([9]))
    trainer, watch = watched(network, monitor=DEAF, precision=precision)
    history = trainer.fit()
    if precision == "16-mixed" and not history.recoveries:
        return  # the scaler saw an infinite number and left the step out itself
    assert history.recoveries[0].action is RecoveryAction.SKIP_BATCH
    assert torch.equal(watch.after[8], watch.before[8])
    assert trainer.step == 23


def test_the_rate_is_reduced(script: dict[int, RecoveryAction]) -> None:
    """Reducing halves the learning rate of the optimiser and of the schedule, from that very step on."""
    script[7] = RecoveryAction.REDUCE_LEARNING_RATE
    rates: list[float] = []

    class Rates(Watch):
        state_key = "rates"

        def on_batch_end(self, trainer: MappingTrainer, record: Any) -> None:
            rates.append(record.learning_rate)

    trainer, _ = watched(model_of(True), callbacks=[Rates()])
    trainer.fit()
    assert rates == [1e-3] * 6 + [5e-4] * 18


@pytest.mark.parametrize("mapped", [True, False])
def test_rolled_back_and_retried(mapped: bool, script: dict[int, RecoveryAction]) -> None:
    """A rollback puts back all that trains as it was copied, keeps the reduced rate, and takes the next batch."""
    script.update({7: RecoveryAction.REDUCE_LEARNING_RATE, 8: RecoveryAction.ROLL_BACK})
    trainer, watch = watched(model_of(mapped))
    history = trainer.fit()
    # Copies are made before the first step and after each four quiet ones: before steps 1 and 5, and not after.
    assert torch.equal(watch.before[8], watch.after[3])
    assert not torch.equal(watch.before[7], watch.after[3])
    assert trainer.step == 24 - 4
    assert history.last.learning_rate == 5e-4


def test_predictions_are_shortened(script: dict[int, RecoveryAction]) -> None:
    """Horizons are halved once it is asked for, and are longer again after an accepted jump."""
    script[2] = RecoveryAction.SHORTEN_PREDICTION
    trainer, _ = watched(model_of(True), policy=Cycle(horizons=(8,)))
    outcomes = trainer.fit().outcomes
    horizons = [each.jump.horizon for each in outcomes if each.jump is not None]
    assert horizons[:2] == [4, 8]


def test_full_training_is_forced(script: dict[int, RecoveryAction]) -> None:
    """A CORRECT phase ends at once, and FULL follows for as many steps as the window has."""
    script[5] = RecoveryAction.FORCE_FULL
    trainer, _ = watched(model_of(True), policy=Cycle())
    history = trainer.fit()
    phases = [(each.step, each.phase) for each in history.phases][:4]
    assert phases == [(0, Phase.FULL), (4, Phase.PREDICT), (4, Phase.CORRECT), (5, Phase.FULL)]
    assert history.phases[4].step == 9


def test_a_rollback_undoes_a_jump_under_correction(script: dict[int, RecoveryAction]) -> None:
    """While a jump is being corrected, rolling back takes back that jump, and the policy hears of it."""
    script[6] = RecoveryAction.ROLL_BACK
    trainer, watch = watched(model_of(True), policy=Cycle())
    trainer.fit()
    assert verdicts(trainer)[0] is Verdict.ROLLED_BACK
    assert torch.equal(watch.before[6], watch.after[3])


@pytest.mark.parametrize("folder", [True, False])
def test_aborted_with_a_checkpoint(folder: bool, tmp_path: Path) -> None:
    """Where nothing is finite any more the run lowers its rate, rolls back, and ends with its last good state."""
    network = nn.Sequential(*noisy(), NanAt(list(range(10, 1000))))
    loader = DataLoader(TensorDataset(*targets.rows(48)), batch_size=2, shuffle=True)
    trainer, watch = watched(network, monitor=DEAF, loader=loader, run_dir=tmp_path if folder else None)
    with pytest.raises(DivergenceError, match=r"training diverges at step \d+ \(non_finite\)"):
        trainer.fit()
    actions = list(dict.fromkeys(each.action for each in trainer.history.recoveries))
    assert actions == [
        RecoveryAction.SKIP_BATCH,
        RecoveryAction.REDUCE_LEARNING_RATE,
        RecoveryAction.ROLL_BACK,
        RecoveryAction.ABORT,
    ]
    assert trainer.history.recoveries[-1].level is DivergenceLevel.CRITICAL
    assert torch.equal(weights(trainer.model), watch.after[trainer.step - 1])
    if folder:
        again, _ = watched(nn.Sequential(*noisy(), NanAt([])), monitor=DEAF, loader=loader)
        (last,) = [each for each in checkpoints_in(tmp_path) if each.name == f"step-{trainer.step:08d}"]
        again.fit(resume=last)
        assert again.epoch == 4


def test_the_monitor_is_in_a_checkpoint(tmp_path: Path, script: dict[int, RecoveryAction]) -> None:
    """A run that reduced its rate and rolled back goes on from its checkpoints bit for bit, rollback and all."""
    written = {7: RecoveryAction.REDUCE_LEARNING_RATE, 15: RecoveryAction.ROLL_BACK}
    script.update(written)
    whole, seen = watched(
        model_of(True), policy=Cycle(), run_dir=tmp_path, checkpoint_every=1, callbacks=[Checkpoint(keep_last=99)]
    )
    whole.fit()
    for step in (6, 7):  # later ones are written again after the rollback
        script.update({at: action for at, action in written.items() if at > step})
        again, watch = watched(model_of(True), policy=Cycle())
        again.fit(resume=tmp_path / "checkpoints" / f"step-{step:08d}")
        assert torch.equal(weights(again.model), weights(whole.model))
        assert watch.losses[-8:] == seen.losses[-8:]
        assert [each.action for each in again.history.recoveries] == [each.action for each in whole.history.recoveries]


def test_progress_says_how_many_jumps_were_kept() -> None:
    """A line an epoch has the jumps so far, where there were any."""
    for policy, said in ((Cycle(), True), ("full", False)):
        out = io.StringIO()
        trainer, _ = watched(model_of(True), policy=policy, callbacks=[ProgressCallback(Console(file=out, width=200))])
        trainer.fit()
        assert ("jumps 1 of 1 kept" in out.getvalue()) is said
