"""The CORRECT phase: what was predicted beside what happened, and what is learned from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from mapping_core.builtin import Checkpoint
from mapping_core.interfaces.dynamics import Proposal
from mapping_core.interfaces.phase_policy import JumpOutcome, Phase, Verdict
from mapping_core.training.correction import Correction
from mapping_core.training.trajectory import Trajectory
from tests.predictive import Extrapolation, weights
from tests.unit.test_jumps import model_of, trainer_of

ACCEPTING: dict[str, Any] = {"tau": 100.0, "risk": 1000.0}


@pytest.mark.parametrize("mapped", [True, False])
def test_residuals_are_those_of_the_correct_phase(mapped: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A CORRECT phase's error and cosine are those of its own displacement and of what was predicted for its steps."""
    asked: list[Tensor] = []
    original = Correction.begin

    def begin(self: Correction, steps: int) -> None:
        original(self, steps)
        assert self._pending is not None
        asked.append(self._pending[0].delta)

    monkeypatch.setattr(Correction, "begin", begin)
    trainer, watch = trainer_of(model_of(mapped), 1.0, guard=ACCEPTING)
    outcomes = trainer.fit().outcomes
    done, measured = 0, []
    for outcome in outcomes:
        if outcome.phase is Phase.CORRECT and outcome.steps == 3:
            actual = watch.after[done + 2] - watch.before[done]
            measured.append((outcome.prediction_error, outcome.cosine, actual))
        else:
            assert (outcome.prediction_error, outcome.cosine) == (None, None)
        done += outcome.steps
    assert len(measured) == 3
    for (error, cosine, actual), predicted in zip(measured, asked, strict=False):
        assert error == pytest.approx(float((actual - predicted).norm() / actual.norm()))
        assert cosine == pytest.approx(float(torch.cosine_similarity(actual, predicted, dim=0)))


def test_a_forecast_has_an_error_where_both_were_measured() -> None:
    """The forecast's error is forecast minus measured, and None where a jump was not probed."""
    jump = JumpOutcome(verdict=Verdict.ACCEPTED, after=0.4, forecast=0.5)
    assert jump.forecast_error == pytest.approx(0.1)
    assert JumpOutcome(verdict=Verdict.WAITING).forecast_error is None


def line(speed: float) -> tuple[Correction, Trajectory, Extrapolation]:
    """A model that says one per step while the truth is `speed`, and what is corrected of it."""
    trajectory = Trajectory([torch.zeros(3)])
    model = Extrapolation(type("Context", (), {"size": 3})(), 1.0)
    correction = Correction(model, trajectory, lambda: 0)
    for _ in range(6):
        here = trajectory.read()
        model.seen = [here - 1.0, here]
        correction.begin(4)
        trajectory.write(here + 4 * speed)
        assert correction.end(4) is not None
    return correction, trajectory, model


def test_corrections_reach_later_proposals() -> None:
    """Where real steps go half as far as predicted, later proposals are shortened, and nearer to the truth."""
    correction, _, _ = line(0.5)
    (proposal,) = correction.corrected([Proposal(horizon=4, delta=torch.full((3,), 4.0))])
    assert torch.allclose(proposal.delta, torch.full((3,), 2.0), atol=0.4)


def test_perfect_predictions_are_left_alone() -> None:
    """A model whose predictions came true is corrected in nothing."""
    correction, _, _ = line(1.0)
    given = Proposal(horizon=4, delta=torch.full((3,), 4.0))
    assert correction.corrected([given]) == [given]
    assert correction.take_error() == 0.0
    assert correction.take_error() is None


def test_what_is_not_measured_is_none() -> None:
    """A phase of another length, one that moved nowhere, and a model without a proposal measure nothing."""
    correction, trajectory, model = line(1.0)
    model.seen = [trajectory.read() - 1.0, trajectory.read()]
    correction.begin(4)
    trajectory.write(trajectory.read() + 3.0)
    assert correction.end(3) is None
    correction.begin(4)
    assert correction.end(4) is None
    correction.begin(4)
    correction.forget()
    assert correction.end(4) is None
    model.seen = []
    correction.begin(4)
    assert correction.end(4) is None


def test_corrections_are_in_a_checkpoint(tmp_path: Path) -> None:
    """A run resumed inside a CORRECT phase measures the same residual and corrects alike, bit for bit."""
    options: dict[str, Any] = {"guard": ACCEPTING, "max_epochs": 6}
    whole, seen = trainer_of(
        model_of(True), 1.0, run_dir=tmp_path, checkpoint_every=1, callbacks=[Checkpoint(keep_last=99)], **options
    )
    whole.fit()
    for step in (6, 13, 20):
        again, watch = trainer_of(model_of(True), 1.0, **options)
        again.fit(resume=tmp_path / "checkpoints" / f"step-{step:08d}")
        assert watch.losses == seen.losses[step:]
        assert torch.equal(weights(again.model), weights(whole.model))
        ours = [(each.prediction_error, each.cosine) for each in again.history.outcomes]
        assert ours == [(each.prediction_error, each.cosine) for each in whole.history.outcomes]
