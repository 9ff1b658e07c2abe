"""Forecasts of trajectories whose future is known."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from mapping_core import DynamicsConfig
from mapping_core.contexts import DynamicsContext
from mapping_core.interfaces.dynamics import Proposal
from mapping_plugin_dynamics import Dmd, Ema, Kalman, Linear, Lookahead, Ols, Random, Subspace
from mapping_plugin_dynamics._dmd import DmdModel
from mapping_plugin_dynamics._kalman import KalmanModel
from mapping_plugin_dynamics._losses import LossTrend
from mapping_plugin_dynamics._modes import Modes
from mapping_plugin_dynamics._noise import Noise
from mapping_plugin_dynamics._window import Window

PREDICTING: list[DynamicsConfig] = [Linear(), Ols(), Ols(degree=2), Subspace(), Dmd(), Dmd(bags=5), Kalman()]
HORIZONS = [5, 20, 80]
T = torch.arange(300, dtype=torch.float32)[:, None]


def named(config: DynamicsConfig) -> str:
    """Name a configuration in the list of tests."""
    return f"{config.name}{getattr(config, 'degree', '')}{'-bags' if getattr(config, 'bags', 0) else ''}"


def normal(*shape: int, seed: int = 0) -> Tensor:
    """Standard normal numbers."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def proposed(config: DynamicsConfig, path: Tensor, steps: int = 100) -> list[Proposal]:
    """What a model proposes after `steps` rows of a path [t, d]."""
    model = config.build(DynamicsContext(size=path.shape[1], seed=1))
    for step in range(steps):
        model.observe(path[step], 1.0, step)
    return model.propose(HORIZONS)


def errors(proposals: list[Proposal], path: Tensor, steps: int = 100) -> list[float]:
    """How far each forecast is off, as a share of how far the path really went."""
    trues = [path[steps - 1 + each.horizon] - path[steps - 1] for each in proposals]
    return [float((each.delta - true).norm() / true.norm()) for each, true in zip(proposals, trues, strict=True)]


@pytest.mark.parametrize("d", [1, 3, 1000])
@pytest.mark.parametrize("config", PREDICTING, ids=named)
def test_drift(config: DynamicsConfig, d: int) -> None:
    """Every model follows a straight line exactly, up to float32."""
    path = 5.0 + 0.01 * T * normal(d)
    assert max(errors(proposed(config, path), path)) < 1e-3


@pytest.mark.parametrize(
    ("config", "limit"),
    [(Dmd(), 1e-3), (Dmd(bags=5), 1e-3), (Subspace(), 0.35), (Kalman(), 0.6), (Linear(), 8.0)],
    ids=lambda value: getattr(value, "name", ""),
)
def test_decay(config: DynamicsConfig, limit: float) -> None:
    """On the way into a fixed point `dmd` is exact, `subspace` and `kalman` slow down, and `linear` overshoots."""
    path = 1.0 + torch.exp(-T / 30) * normal(500)
    found = max(errors(proposed(config, path, 64), path, 64))
    assert found < limit
    assert config.name != "linear" or found > 2.0


@pytest.mark.parametrize("bags", [0, 5])
def test_two_speeds_and_a_turn(bags: int) -> None:
    """`dmd` with enough directions separates movements that decay at different rates, and follows a rotation."""
    first, second, centre = normal(3, 500)
    both = centre + torch.exp(-T / 25) * first + torch.exp(-T / 120) * second
    turning = centre + torch.cos(T / 20) * first + torch.sin(T / 20) * second
    spiral = centre + torch.exp(-T / 60) * (torch.cos(T / 9) * first + torch.sin(T / 9) * second)
    for path in (both, turning, spiral):
        assert max(errors(proposed(Dmd(bags=bags), path), path)) < 5e-3


def test_alternating() -> None:
    """A path that jumps to and fro at each snapshot has a negative eigenvalue, and is followed."""
    path = 1.0 + (-0.9) ** (T // 2) * normal(50)
    model = Dmd().build(DynamicsContext(size=50, seed=0))
    assert isinstance(model, DmdModel)
    for step in range(39):
        model.observe(path[step], 1.0, step)
    (found,) = model.eigenvalues().tolist()
    assert found == pytest.approx(-0.9, abs=1e-3)
    for horizon in (2, 4):
        (proposal,) = model.propose([horizon])
        torch.testing.assert_close(proposal.delta, path[38 + horizon] - path[38], rtol=0, atol=1e-3)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("growth", [1.0, 1.01, 1.1])
def test_no_mode_grows(seed: int, growth: float) -> None:
    """Eigenvalues stay within the unit circle, on paths that grow and on noise, and no jump leaps out of proportion."""
    path = growth ** (T / 2) * normal(20, seed=seed) + normal(300, 20, seed=seed + 100)
    for config in (Dmd(), Dmd(rank=5, bags=3), Subspace()):
        model = config.build(DynamicsContext(size=20, seed=seed))
        for step in range(60):
            model.observe(path[step], 1.0, step)
        if isinstance(model, DmdModel):
            assert bool((model.eigenvalues().abs() <= 1 + 1e-12).all())
        seen = path[21:60]
        extent = float((seen.amax(0) - seen.amin(0)).norm())
        for proposal in model.propose(HORIZONS):
            assert float(proposal.delta.norm()) <= 2.5 * extent * max(1.0, proposal.horizon / 38)


@pytest.mark.parametrize("config", PREDICTING, ids=named)
def test_standing_still(config: DynamicsConfig) -> None:
    """A vector that does not move is left where it is, and nothing is doubted."""
    for proposal in proposed(config, torch.full((300, 30), 0.3)):
        assert float(proposal.delta.abs().max()) < 1e-6
        assert proposal.variance == 0.0


@pytest.mark.parametrize(
    "config", [Linear(), Ols(), Ols(degree=2), Subspace(), Dmd(), Dmd(bags=5), Kalman()], ids=named
)
def test_variance_on_a_drift_that_wanders(config: DynamicsConfig) -> None:
    """On steps with independent noise the variance is the mean squared error within 15 %, over twenty runs."""
    ratios = torch.zeros(len(HORIZONS))
    for seed in range(20):
        path = 0.01 * T * normal(1000, seed=seed) + 0.02 * normal(300, 1000, seed=seed + 50).cumsum(0)
        for index, each in enumerate(proposed(config, path)):
            true = path[99 + each.horizon] - path[99]
            assert each.variance is not None
            ratios[index] += each.variance / float((each.delta - true).square().mean()) / 20
    assert bool(((ratios > 0.85) & (ratios < 1.15)).all()), ratios


@pytest.mark.parametrize("config", [Linear(), Ols(), Ols(degree=2), Subspace(), Dmd()], ids=named)
def test_variance_on_a_drift_with_jitter(config: DynamicsConfig) -> None:
    """Around a line with independent noise it is the mean squared error or up to half more, over twenty runs."""
    ratios = torch.zeros(len(HORIZONS))
    for seed in range(20):
        path = 0.01 * T * normal(1000, seed=seed) + 0.05 * normal(300, 1000, seed=seed + 50)
        for index, each in enumerate(proposed(config, path)):
            true = path[99 + each.horizon] - path[99]
            assert each.variance is not None
            ratios[index] += each.variance / float((each.delta - true).square().mean()) / 20
    assert bool(((ratios > 0.9) & (ratios < 1.5)).all()), ratios


@pytest.mark.parametrize(("wandering", "jitter"), [(0.03, 0.0), (0.0, 0.05), (0.03, 0.05)])
def test_noise_is_told_apart(wandering: float, jitter: float) -> None:
    """The two kinds of noise are found at their variances, whatever the drift, and neither is negative."""
    window = Window(20, 1, 20_000)
    noise = wandering * normal(20, 20_000).cumsum(0) + jitter * normal(20, 20_000, seed=1)
    for step in range(20):
        window.add(step * normal(20_000, seed=2) + noise[step], step)
    found = Noise.of(window.scatter(), 20)
    assert found.wandering == pytest.approx(wandering**2, abs=3e-5)
    assert found.jitter == pytest.approx(jitter**2, abs=3e-5)
    assert min(found.wandering, found.jitter) >= 0


def test_linear_is_its_formula() -> None:
    """The velocity is the difference of the means of the halves, over half the window, as documented."""
    path = normal(40, 7)
    model = Linear(snapshots=9, stride=3).build(DynamicsContext(size=7, seed=0))
    for step in range(40):
        model.observe(path[step], 1.0, step)
    kept = path[:40:3][-9:]
    velocity = (kept[-4:].mean(0) - kept[:4].mean(0)) / (5 * 3)
    (proposal,) = model.propose([10])
    torch.testing.assert_close(proposal.delta, 10 * velocity)


def test_ols_is_a_polynomial_fit() -> None:
    """`ols` gives the rise of the polynomial through the snapshots from the last observation on, snapshot or not."""
    path = normal(60, 4).double()
    for degree in (1, 2):
        model = Ols(snapshots=10, stride=4, degree=degree).build(DynamicsContext(size=4, seed=0))
        for step in range(60):
            model.observe(path[step], 1.0, step)
        times = torch.arange(20, 60, 4).double()
        coefficients = torch.linalg.lstsq(torch.stack([times**p for p in range(degree + 1)], 1), path[20:60:4]).solution
        ends = torch.tensor([59.0, 66.0]).double()
        now, later = torch.stack([ends**p for p in range(degree + 1)], 1) @ coefficients
        (proposal,) = model.propose([7])
        torch.testing.assert_close(proposal.delta, later - now)


def test_random_is_linear_but_for_its_direction() -> None:
    """The placebo has the lengths, forecasts and variances of `linear`; its direction is the seed's and the step's."""
    path = 0.1 * T * normal(3000) + 0.01 * normal(300, 3000, seed=1).cumsum(0)
    real, placebo = proposed(Linear(), path), proposed(Random(), path)
    for one, other in zip(real, placebo, strict=True):
        assert float(other.delta.norm()) == pytest.approx(float(one.delta.norm()), rel=1e-5)
        assert (one.forecast, one.variance, one.horizon) == (other.forecast, other.variance, other.horizon)
        assert abs(float(torch.cosine_similarity(one.delta, other.delta, dim=0))) < 0.1
    later = proposed(Random(), path, 102)
    assert abs(float(torch.cosine_similarity(placebo[0].delta, later[0].delta, dim=0))) < 0.1
    assert float(torch.cosine_similarity(placebo[0].delta, placebo[2].delta, dim=0)) > 0.999


def test_ema_is_its_formula() -> None:
    """`ema` leads to the moving average that began at the first observation, for the shortest horizon."""
    path = normal(60, 5)
    average = path[0].clone()
    for step in range(1, 60):
        average = 0.95 * average + 0.05 * path[step]
    (proposal,) = proposed(Ema(decay=0.95), path, 60)
    assert (proposal.horizon, proposal.forecast, proposal.variance) == (5, None, None)
    torch.testing.assert_close(path[59] + proposal.delta, average)


def test_lookahead_is_its_formula() -> None:
    """Slow weights move by alpha at each kept jump, stay at a rejected one, and the next is k steps later."""
    path = normal(60, 5)
    model = Lookahead(alpha=0.3, k=4).build(DynamicsContext(size=5, seed=0))
    for step in range(5):
        model.observe(path[step], 1.0, step)
    (proposal,) = model.propose(HORIZONS)
    slow = path[0] + 0.3 * (path[4] - path[0])
    torch.testing.assert_close(path[4] + proposal.delta, slow)
    model.feedback(None, 1.0)
    assert model.propose(HORIZONS)
    model.feedback(proposal, 1.0)
    for step in range(5, 9):
        assert model.propose(HORIZONS) == []
        model.observe(path[step], 1.0, step)
    (proposal,) = model.propose(HORIZONS)
    torch.testing.assert_close(path[8] + proposal.delta, slow + 0.3 * (path[8] - slow))


def test_kalman_finds_its_filter() -> None:
    """The likeliest filter is the one that made the path: a lasting velocity or one that fades, steady or not."""
    for drift, persistence in [(1e-4, 1.0), (1e-1, 1.0), (1e-1, 0.9), (1e-2, 0.9)]:
        velocity, z = normal(4000), torch.zeros(4000)
        model = Kalman(stride=1).build(DynamicsContext(size=4000, seed=0))
        assert isinstance(model, KalmanModel)
        for step in range(80):
            model.observe(z, 1.0, step)
            velocity = persistence * velocity + math.sqrt(drift) * normal(4000, seed=2 * step)
            z = z + velocity + normal(4000, seed=2 * step + 1)
        assert model.chosen == (drift, persistence)


@pytest.mark.parametrize("shape", ["line", "decay", "flat"])
def test_forecast_of_the_loss(shape: str) -> None:
    """A loss that falls in a line, or into a floor, is forecast; noise around a constant gives that constant."""
    steps = torch.arange(200).double()
    losses = {"line": 2 - 0.003 * steps, "decay": 0.5 + torch.exp(-steps / 20), "flat": 1 + 0 * steps}[shape]
    noisy = losses + 0.02 * torch.randn(200, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    trend = LossTrend(40)
    assert trend.forecasts([5]) == [None]
    for loss in noisy[:60].tolist():
        trend.add(loss)
    for found, horizon in zip(trend.forecasts([10, 40]), [10, 40], strict=True):
        assert found == pytest.approx(float(losses[59 + horizon]), abs=0.06)


def test_modes_are_those_that_made_the_series() -> None:
    """The eigenvalues behind a noisy series are found to 0.03."""
    t = torch.arange(20).double()
    lasting, turning = 0.97, 0.9 * torch.exp(torch.tensor(0.5j)).to(torch.complex128)
    series = torch.stack([lasting**t, (turning**t).real, (turning**t).imag], 1)
    for seed in range(5):
        noise = 0.02 * torch.randn(20, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        found = Modes.fitted(series + noise).eigenvalues
        for true in (lasting, complex(turning), complex(turning).conjugate()):
            assert min(abs(complex(each) - true) for each in found) < 0.03
