"""The faults that predictive trainers were found to have: one test each, on a whole run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from mapping_core import Callback, ConfigError, MappingModel, MappingTrainer, PluginError, Thresholds
from mapping_core.builtin import Checkpoint
from mapping_core.interfaces.dynamics import Proposal
from mapping_core.interfaces.phase_policy import JumpOutcome, Phase, PhaseOutcome, Verdict
from mapping_core.training.divergence import DivergenceLevel, DivergenceMonitor, DivergenceSignal
from mapping_core.training.prediction import Predictor
from mapping_core.training.prediction_metrics import PredictionMetrics
from mapping_core.training.residuals import Residual, ResidualStore
from tests import predictive
from tests.predictive import weights
from tests.unit.test_jumps import REGISTRY, NanAt, model_of, noisy, state_of, trainer_of, verdicts

ACCEPTING: dict[str, Any] = {"tau": 100.0, "risk": 1000.0}


def test_deltas_reach_what_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deltas that never match names: an accepted jump moves the latent by exactly the delta, another size raises."""
    kept: dict[int, Any] = {}
    write = Predictor.jump

    def jump(self: Predictor, horizons: tuple[int, ...]) -> JumpOutcome:
        outcome = write(self, horizons)
        if outcome.verdict is Verdict.ACCEPTED:
            kept[self._loop.trainer.step] = self._dynamics.told[-1][0].delta  # type: ignore[attr-defined]
        return outcome

    monkeypatch.setattr(Predictor, "jump", jump)
    trainer, watch = trainer_of(model_of(True), 1.0, guard=ACCEPTING)
    trainer.fit()
    assert kept
    for step, delta in kept.items():
        assert torch.equal(watch.before[step], watch.after[step - 1] + delta)
    monkeypatch.setattr(
        predictive.Extrapolation, "propose", lambda self, horizons: [Proposal(horizon=1, delta=torch.ones(3))]
    )
    with pytest.raises(PluginError, match=r"shape \[3\] for 16 trained numbers"):
        trainer_of(model_of(True), 1.0)[0].fit()


def test_a_delta_is_applied_once() -> None:
    """A delta of many steps applied in each of them: a PREDICT phase moves by one proposal, and makes no step."""
    trainer, watch = trainer_of(model_of(True), 1.0, guard=ACCEPTING)
    outcomes = trainer.fit().outcomes
    first = next(each for each in outcomes if each.jump is not None)
    assert first.jump is not None
    assert (first.phase, first.steps, first.jump.verdict) == (Phase.PREDICT, 0, Verdict.ACCEPTED)
    assert first.jump.horizon is not None
    last = watch.after[3] - watch.after[2]
    assert torch.allclose(watch.before[4] - watch.after[3], last * first.jump.horizon, atol=1e-6)


def test_a_perfect_prediction_is_no_signal() -> None:
    """The error passed where the prediction is expected: an error of 0 is no signal, and neither is none."""
    monitor = DivergenceMonitor(Thresholds(warmup=2, window=4))
    for error in (0.0, None, 1.0):
        assert monitor.observe(step=1, loss=1.0, gradient_norm=1.0, prediction_error=error).signals == {}
    report = monitor.observe(step=2, loss=1.0, gradient_norm=1.0, prediction_error=2.0)
    assert list(report.signals) == [DivergenceSignal.PREDICTION_ERROR]


@pytest.mark.parametrize("mapped", [True, False])
def test_checkpoints_hold_weights(mapped: bool, tmp_path: Path) -> None:
    """A checkpoint without weights: resuming in the middle of a CORRECT phase gives the same bits."""
    options: dict[str, Any] = {"guard": ACCEPTING}
    whole, seen = trainer_of(
        model_of(mapped), 1.0, run_dir=tmp_path, checkpoint_every=6, callbacks=[Checkpoint(keep_last=9)], **options
    )
    whole.fit()
    again, watch = trainer_of(model_of(mapped), 1.0, **options)
    again.fit(resume=tmp_path / "checkpoints" / "step-00000006")
    assert watch.losses == seen.losses[6:]
    assert torch.equal(weights(again.model), weights(whole.model))


@pytest.mark.parametrize("mapped", [True, False])
@pytest.mark.parametrize("precision", ["32-true", "16-mixed"])
def test_a_rollback_restores(mapped: bool, precision: str) -> None:
    """A rollback that restores nothing: a NaN after a jump puts all back, so the run is that which never jumped."""
    network = nn.Sequential(*noisy(), NanAt([6]))
    model = MappingModel(network, 16, "slvt", registry=REGISTRY) if mapped else network
    options: dict[str, Any] = {"schedule": "constant", "warmup": 0.0, "precision": precision}
    jumped, watch = trainer_of(model, 1.0, guard={**ACCEPTING, "wait": 1000}, **options)
    jumped.fit()
    assert verdicts(jumped)[0] is Verdict.ROLLED_BACK
    assert torch.equal(watch.before[6], watch.after[3])
    # The same batches without a jump: two of them make no step, as those that were undone.
    other = nn.Sequential(*noisy(), NanAt([5, 6]))
    plain, seen = trainer_of(
        MappingModel(other, 16, "slvt", registry=REGISTRY) if mapped else other, None, nonfinite="skip", **options
    )
    plain.fit()
    assert torch.equal(seen.after[5], watch.before[6])
    moments = [value for state in state_of(jumped)[1:2] for value in state]
    assert all(bool(value.isfinite().all()) for value in moments)
    assert jumped.step == plain.step == 22


def test_an_unknown_predictor_is_an_error() -> None:
    """A silent fallback of an unknown predictor: a name that nobody supplies raises, and so does a missing model."""
    with pytest.raises(ConfigError, match=r"no dynamics_model named 'nowcaster'"):
        trainer_of(model_of(True), None, prediction={"policy": "cycle", "dynamics": "nowcaster"})
    trainer, _ = trainer_of(model_of(True), None, prediction={"policy": "cycle"})
    with pytest.raises(ConfigError, match=r"prediction.dynamics: the phase policy asks for a jump"):
        trainer.fit()


def test_tuning_is_applied() -> None:
    """Auto-tuning that is computed and never applied: an accepted jump's factor is in the rate of the next step."""
    rates: list[float] = []

    class Rates(Callback):
        def on_batch_end(self, trainer: MappingTrainer, record: Any) -> None:
            rates.append(record.learning_rate)

    options: dict[str, Any] = {"schedule": "constant", "warmup": 0.0, "max_epochs": 1}
    trainer, _ = trainer_of(model_of(True), 1.0, guard=ACCEPTING, rate_factor=2.0, callbacks=[Rates()], **options)
    trainer.fit()
    assert rates == [1e-3] * 4 + [2e-3] * 2


def test_unmeasured_is_none() -> None:
    """Invented metrics: what was not measured is None, of a jump, of a phase and of a run."""
    trainer, _ = trainer_of(model_of(True), 1.0, guard={"share": 0.0})
    history = trainer.fit()
    jump = next(each.jump for each in history.outcomes if each.jump is not None)
    assert (jump.horizon, jump.before, jump.after, jump.bound, jump.forecast_error) == (None,) * 5
    metrics = history.prediction
    assert (metrics.probed, metrics.accepted) == (0, 0)
    assert (metrics.acceptance_rate, metrics.forecast_error, metrics.prediction_error, metrics.cosine) == (None,) * 4


def test_measured_is_a_mean_of_what_was_measured() -> None:
    """A run's metrics are those of its outcomes, and a jump that was undone is not one that was accepted."""
    trainer, _ = trainer_of(model_of(True), 1.0, guard=ACCEPTING)
    history = trainer.fit()
    metrics = history.prediction
    assert metrics.probed == metrics.accepted == verdicts(trainer).count(Verdict.ACCEPTED) > 0
    errors = [each.prediction_error for each in history.outcomes if each.prediction_error is not None]
    assert metrics.prediction_error == pytest.approx(sum(errors) / len(errors))
    assert metrics.overhead_seconds > 0.0
    undone = PhaseOutcome(
        phase=Phase.PREDICT,
        steps=0,
        loss=None,
        seconds=0.0,
        jump=JumpOutcome(verdict=Verdict.ROLLED_BACK, after=1.0),
    )
    assert PredictionMetrics.of([undone]).acceptance_rate == 0.0


@pytest.mark.parametrize("steps", [100, 256, 257, 1000])
def test_windows_do_not_go_stale(steps: int) -> None:
    """A window that goes stale after 256 steps: a loss that rises is found in a window, whenever it rises."""
    monitor = DivergenceMonitor(Thresholds(warmup=20, window=8))
    for step in range(steps):
        monitor.observe(step=step, loss=1.0 + 0.1 * (step % 3), gradient_norm=1.0)
    reports = [monitor.observe(step=steps + more, loss=3.0, gradient_norm=1.0) for more in range(8)]
    assert max(report.level for report in reports) is DivergenceLevel.WARNING


def test_memory_is_what_is_held() -> None:
    """Memory figures that are stubs: what the store of residuals says it takes is what its tensors have allocated."""
    store = ResidualStore(capacity=3)
    for step in range(5):
        store.add(Residual(step=step, horizon=1, predicted=torch.randn(1000), actual=torch.randn(1000)))
    (kept,) = store.state_dict().values()
    held = [value for each in kept for value in each if isinstance(value, torch.Tensor)]
    assert store.bytes == sum(each.untyped_storage().nbytes() for each in held) == 3 * 4 * 1000


@pytest.mark.parametrize("options", [{"accumulate": 2}, {"precision": "bf16-mixed"}, {"precision": "16-mixed"}])
def test_rejected_jumps_leave_nothing(options: dict[str, Any]) -> None:
    """Accumulated or in mixed precision: with every jump rejected a run is the plain one, bit for bit."""
    plain, seen = trainer_of(model_of(True), None, **options)
    plain.fit()
    guarded, watch = trainer_of(model_of(True), -3.0, guard={"deviations": 10.0}, **options)
    guarded.fit()
    assert Verdict.REJECTED in verdicts(guarded)
    assert Verdict.ACCEPTED not in verdicts(guarded)
    assert watch.losses == seen.losses
    for ours, theirs in zip(state_of(guarded), state_of(plain), strict=True):
        assert all(map(torch.equal, ours, theirs))
