"""Residuals of predictions: what they measure, how they are kept, and a corrector that learns from them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mapping_core.interfaces.dynamics import Proposal
from mapping_core.training.residuals import Corrector, Residual, ResidualStore


def draws(seed: int, size: int = 200) -> Tensor:
    """Return a vector of standard normal numbers."""
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


def residual(predicted: Tensor, actual: Tensor, horizon: int = 5) -> Residual:
    """Return what was missed."""
    return Residual(step=10, horizon=horizon, predicted=predicted, actual=actual)


def test_a_perfect_prediction_has_no_residual() -> None:
    """Where all went as predicted, value and error are 0 and the cosine 1."""
    perfect = residual(draws(0), draws(0))
    assert not perfect.value.any()
    assert perfect.error == 0.0
    assert perfect.cosine == pytest.approx(1.0)


def test_no_prediction_has_error_one() -> None:
    """Predicting no movement has the error 1, the opposite of what happens 2."""
    assert residual(torch.zeros(200), draws(0)).error == pytest.approx(1.0)
    assert residual(-draws(0), draws(0)).error == pytest.approx(2.0)


@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
def test_the_store(scale: float) -> None:
    """It keeps the last ones in 4 bytes a number, to a relative precision of a 2,048th, at any scale."""
    store = ResidualStore(capacity=3)
    for seed in range(5):
        store.add(residual(scale * draws(seed), scale * draws(seed + 10)))
    assert len(store) == 3
    assert store.bytes == 3 * 4 * 200
    for seed, kept in zip(range(2, 5), store, strict=True):
        torch.testing.assert_close(kept.predicted, scale * draws(seed), rtol=1 / 2048, atol=scale * 2**-22)
        torch.testing.assert_close(kept.actual, scale * draws(seed + 10), rtol=1 / 2048, atol=scale * 2**-22)


def test_the_store_takes_zeros_and_leaves_out_what_is_not_finite() -> None:
    """A vector of zeros comes back as such; NaN and infinity are not kept."""
    store = ResidualStore()
    store.add(residual(torch.zeros(4), torch.zeros(4)))
    store.add(residual(torch.full((4,), float("nan")), torch.ones(4)))
    store.add(residual(torch.ones(4), torch.full((4,), float("inf"))))
    (kept,) = store
    assert not kept.predicted.any()


def learned(gain: float, drift: float, noise: float, count: int = 12) -> Corrector:
    """Return a corrector that saw predictions too small by a factor `gain`, and a drift nobody predicted."""
    corrector = Corrector()
    for seed in range(count):
        predicted = draws(seed)
        actual = gain * predicted + 5 * drift * draws(1000) + noise * draws(seed + 100)
        corrector.learn(residual(predicted, actual))
    return corrector


@pytest.mark.parametrize(("gain", "drift"), [(2.0, 0.0), (0.5, 0.0), (1.0, 0.5), (1.7, 0.3)])
def test_what_is_missed_each_time_is_learned(gain: float, drift: float) -> None:
    """A wrong length and a drift are corrected: the next displacement is much nearer to what happens."""
    corrector = learned(gain, drift, noise=0.1)
    delta = draws(50)
    actual = gain * delta + 10 * drift * draws(1000)
    corrected = corrector.correct(Proposal(horizon=10, delta=delta, forecast=0.5))
    assert corrector.helps
    assert corrected.forecast == 0.5
    assert (actual - corrected.delta).norm() < 0.35 * (actual - delta).norm()
    assert corrector.improvement is not None
    assert corrector.improvement > 0.5


def test_noise_is_not_corrected() -> None:
    """Where there is nothing to learn a proposal comes back as it is, or almost."""
    corrector = learned(1.0, 0.0, noise=1.0)
    delta = draws(50)
    corrected = corrector.correct(Proposal(horizon=5, delta=delta)).delta
    assert (corrected - delta).norm() < 0.2 * delta.norm()
    assert corrector.improvement is not None
    assert corrector.improvement < 0.1


def test_a_correction_that_does_not_help_is_not_applied() -> None:
    """Before anything was seen, and where the sign of what is missed turns each time, proposals are left alone."""
    corrector = Corrector()
    proposal = Proposal(horizon=5, delta=draws(50))
    assert corrector.correct(proposal) is proposal
    assert corrector.improvement is None
    for seed in range(9):
        corrector.learn(residual(draws(seed), (1.0 + 0.9 * (-1) ** seed) * draws(seed)))
    assert not corrector.helps
    assert corrector.correct(proposal) is proposal


def test_what_is_not_finite_is_not_learned() -> None:
    """A NaN among what happened changes nothing."""
    corrector = learned(2.0, 0.0, noise=0.1)
    before = corrector.correct(Proposal(horizon=5, delta=draws(50))).delta
    corrector.learn(residual(draws(0), torch.full((200,), float("nan"))))
    assert torch.equal(corrector.correct(Proposal(horizon=5, delta=draws(50))).delta, before)


def test_state() -> None:
    """A corrector that takes over a state corrects to the same bits."""
    corrector, twin = learned(1.7, 0.3, noise=0.1), Corrector()
    twin.load_state_dict(corrector.state_dict())
    proposal = Proposal(horizon=5, delta=draws(50))
    assert torch.equal(corrector.correct(proposal).delta, twin.correct(proposal).delta)
    twin.load_state_dict(Corrector().state_dict())
    assert twin.correct(proposal) is proposal
