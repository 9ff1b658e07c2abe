"""What every dynamics model of the plugin promises."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

import mapping_core
import mapping_core.builtin
import mapping_plugin_dynamics
from mapping_core import BudgetError, CheckpointError, DynamicsConfig, DynamicsModel
from mapping_core.config import structure, unstructure
from mapping_core.contexts import DynamicsContext
from mapping_core.registry import Registry
from mapping_core.training.state import read_state, write_state
from mapping_plugin_dynamics import Dmd, Ema, Kalman, Linear, Lookahead, Nothing, Ols, Random, Subspace

REGISTRY = Registry.of(mapping_core.builtin, mapping_plugin_dynamics)
WINDOWED: list[DynamicsConfig] = [Linear(), Ols(), Ols(degree=2), Subspace(), Dmd(), Dmd(bags=4), Random()]
#: Those that forget all they have after a jump that was not kept.
PREDICTING: list[DynamicsConfig] = [*WINDOWED, Kalman()]
PROPOSING: list[DynamicsConfig] = [*PREDICTING, Ema(), Lookahead()]
D = 40
LONG = 80  # steps after which every model proposes


def named(config: DynamicsConfig) -> str:
    """Name a configuration in the list of tests."""
    return f"{config.name}{getattr(config, 'degree', '')}{'-bags' if getattr(config, 'bags', 0) else ''}"


def build(config: DynamicsConfig, size: int = D) -> DynamicsModel:
    """Build a model for so many numbers."""
    return config.build(DynamicsContext(size=size, seed=3))


def path(steps: int = 300, size: int = D) -> Tensor:
    """A trajectory [steps, size] that drifts, slows down and wanders."""
    generator = torch.Generator().manual_seed(0)
    t = torch.arange(steps, dtype=torch.float32)[:, None]
    first, second = torch.randn(2, size, generator=generator)
    noise = 0.01 * torch.randn(steps, size, generator=generator).cumsum(0)
    found: Tensor = 0.02 * t * first + torch.exp(-t / 40) * second + noise
    return found


def shown(
    config: DynamicsConfig, steps: int = LONG, start: int = 0, model: DynamicsModel | None = None
) -> DynamicsModel:
    """Show a model the steps of `path` from `start` on."""
    model = build(config) if model is None else model
    for step in range(start, start + steps):
        model.observe(path()[step], 2.0 - 0.005 * step, step)
    return model


def deltas(model: DynamicsModel) -> list[list[float]]:
    """What a model proposes, to the bit."""
    return [[each.horizon, *each.delta.tolist()] for each in model.propose([5, 20])]


def test_registered() -> None:
    """The plugin adds nine models, at core's version; object, name and table are one."""
    assert mapping_plugin_dynamics.__version__ == mapping_core.__version__
    assert {config.name for config in mapping_plugin_dynamics.mapping_dynamics_models()} == {
        *("linear", "ols", "subspace", "dmd", "kalman"),
        *("none", "random", "lookahead", "ema"),
    }
    for config in [*PROPOSING, Nothing()]:
        assert structure(unstructure(config), type(config), registry=REGISTRY) == config
        assert REGISTRY.resolve(DynamicsConfig, config.name) == type(config)()


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (Linear, {"snapshots": 7}),
        (Linear, {"stride": 0}),
        (Linear, {"stride": 1.5}),
        (Ols, {"degree": 3}),
        (Subspace, {"rank": 8}),
        (Dmd, {"rank": 0}),
        (Dmd, {"bags": -1}),
        (Kalman, {"observations": 7}),
        (Kalman, {"memory": 1.0}),
        (Lookahead, {"alpha": 1.0}),
        (Lookahead, {"k": 0}),
        (Ema, {"decay": 1.0}),
    ],
)
def test_options_are_checked(kind: type[DynamicsConfig], options: dict[str, float]) -> None:
    """An option out of its range is refused, by name."""
    with pytest.raises((TypeError, ValueError), match=next(iter(options))):
        kind(**options)


@pytest.mark.parametrize("config", PROPOSING, ids=named)
def test_asking_changes_nothing(config: DynamicsConfig) -> None:
    """Before enough was seen there is no proposal; then two questions have one answer, in tensors of their own."""
    model = build(config)
    assert model.propose([5]) == []
    shown(config, 3, model=model)
    assert model.propose([5]) == []
    shown(config, LONG, 3, model)
    before = torch.random.get_rng_state()
    assert model.propose([]) == []
    first = deltas(model)
    for proposal in model.propose([5, 20]):
        assert proposal.delta.shape == (D,)
        assert proposal.delta.dtype is torch.float32
        assert bool(proposal.delta.isfinite().all())
        proposal.delta.fill_(9.0)
    assert deltas(model) == first
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize("config", PREDICTING, ids=named)
def test_proposes_each_horizon(config: DynamicsConfig) -> None:
    """There is a proposal for each horizon, in the order asked, with the loss expected and a variance that grows."""
    proposals = shown(config).propose([10, 80, 20])
    assert [proposal.horizon for proposal in proposals] == [10, 80, 20]
    ten, eighty, twenty = proposals
    assert ten.forecast is not None
    # Losses fall by 0.005 a step; the last was 1.605.
    assert ten.forecast == pytest.approx(1.555, abs=2e-3)
    assert 0 < ten.variance < twenty.variance < eighty.variance  # type: ignore[operator]


@pytest.mark.parametrize("config", PROPOSING, ids=named)
def test_keeps_no_graph_and_no_alias(config: DynamicsConfig) -> None:
    """What is kept is a copy: neither the caller's writes nor its graph get into the trajectory."""
    model, memory = build(config), torch.empty(D)
    for step in range(LONG):
        memory.copy_(path()[step])
        model.observe(memory.requires_grad_(), 1.0, step)
        memory = memory.detach_()
        memory.fill_(torch.nan)
    plain = shown(config)
    assert deltas(model) == deltas(plain)
    assert not any(proposal.delta.requires_grad for proposal in model.propose([5]))


@pytest.mark.parametrize("config", [*PROPOSING, Nothing()], ids=named)
@pytest.mark.parametrize("steps", [1, 31, LONG - 3])
def test_state_goes_through_a_file(config: DynamicsConfig, steps: int, tmp_path: Path) -> None:
    """A model that was saved and read goes on to the same proposals, to the bit, and its state is a copy."""
    model = shown(config, steps)
    state = model.state_dict()
    write_state(tmp_path / "state", state)
    again = build(config)
    again.load_state_dict(read_state(tmp_path / "state"))
    assert deltas(again) == deltas(model)
    shown(config, LONG, steps, model)
    shown(config, LONG, steps, again)
    assert deltas(again) == deltas(model)
    rolled_back = build(config)
    rolled_back.load_state_dict(state)  # the one taken before the steps that followed
    assert deltas(shown(config, LONG, steps, rolled_back)) == deltas(model)


@pytest.mark.parametrize("config", PROPOSING, ids=named)
def test_state_of_another_size(config: DynamicsConfig) -> None:
    """A state of another vector is refused."""
    with pytest.raises(CheckpointError, match="41"):
        build(config, 41).load_state_dict(shown(config).state_dict())


def test_state_of_another_window() -> None:
    """A state of another number of snapshots is refused."""
    with pytest.raises(CheckpointError, match="build it with the options"):
        build(Linear(snapshots=10)).load_state_dict(shown(Linear()).state_dict())


@pytest.mark.parametrize("config", PROPOSING, ids=named)
def test_wrong_shape(config: DynamicsConfig) -> None:
    """A vector of another size, or a matrix, is refused and leaves no trace."""
    model = shown(config)
    before = deltas(model)
    for wrong in (torch.zeros(D + 1), torch.zeros(1, D)):
        with pytest.raises(BudgetError, match=f"built for {D} numbers"):
            model.observe(wrong, 1.0, LONG)
    assert deltas(model) == before


@pytest.mark.parametrize("config", PREDICTING, ids=named)
def test_after_a_rejection(config: DynamicsConfig) -> None:
    """What led to a rejected jump is forgotten: the next proposal comes of steps made since, as of a new model."""
    model = shown(config)
    model.feedback(None, 3.0)
    assert model.propose([5]) == []
    shown(config, LONG, LONG, model)
    assert deltas(model) == deltas(shown(config, LONG, LONG))


@pytest.mark.parametrize("config", [each for each in PREDICTING if each.name != "random"], ids=named)
def test_after_an_acceptance(config: DynamicsConfig) -> None:
    """A jump is no step: a model that saw one and was told goes on as if the path had lain there all along."""
    jump = torch.linspace(-5.0, 5.0, D)
    model, moved = shown(config), build(config)
    (proposal,) = model.propose([20])
    model.feedback(type(proposal)(horizon=20, delta=jump), 1.0)
    for step in range(LONG + 40):
        moved.observe(path()[step] + jump, 1.0, step)
        if step >= LONG:
            model.observe(path()[step] + jump, 1.0, step)
    torch.testing.assert_close(torch.tensor(deltas(model)), torch.tensor(deltas(moved)), rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("config", PREDICTING, ids=named)
@pytest.mark.parametrize("fault", ["latent", "loss", "gap", "back"])
def test_what_is_no_trajectory(config: DynamicsConfig, fault: str) -> None:
    """NaN, infinity, steps left out or made again: what came before is forgotten, and nothing of it is proposed."""
    model = shown(config)
    start = {"gap": LONG + 50, "back": 10}.get(fault, LONG + 1)
    if fault == "latent":
        for step in (LONG, LONG + 1, LONG + 2, LONG + 3):
            model.observe(torch.full((D,), torch.inf), 1.0, step)
        start = LONG + 4
    elif fault == "loss":
        model.observe(path()[LONG], float("nan"), LONG)
    shown(config, 1, start, model)
    assert model.propose([5]) == []
    shown(config, LONG, start + 1, model)
    assert deltas(model) == deltas(shown(config, LONG + 1, start))


@pytest.mark.parametrize("config", [Ema(), Lookahead()], ids=named)
def test_averages_leave_out_what_is_not_finite(config: DynamicsConfig) -> None:
    """A NaN does not spoil an average: the step counts for nothing."""
    model = shown(config)
    before = deltas(model)
    model.observe(torch.full((D,), torch.nan), 1.0, LONG)
    model.observe(path()[LONG], float("inf"), LONG + 1)
    assert deltas(model) == before


@pytest.mark.parametrize("config", [*PROPOSING, Nothing()], ids=named)
def test_memory_is_bounded(config: DynamicsConfig) -> None:
    """A long run takes no more memory than a short one."""

    def count(value: object) -> int:
        if isinstance(value, Tensor):
            return value.numel()
        if isinstance(value, dict):
            return sum(map(count, value.values()))
        return sum(map(count, value)) if isinstance(value, list) else 1

    model = shown(config, 100)
    after_short = count(model.state_dict())
    shown(config, 100, 100, model)
    assert count(model.state_dict()) == after_short <= 21 * D + 100


@pytest.mark.parametrize("config", PROPOSING, ids=named)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_dtypes(config: DynamicsConfig, dtype: torch.dtype) -> None:
    """Displacements have the dtype of what was observed, and that of half precision is as good as it can be."""
    model, exact = build(config), build(config)
    for step in range(LONG):
        model.observe(path()[step].to(dtype), 1.0, step)
        exact.observe(path()[step].to(dtype).double(), 1.0, step)
    for found, expected in zip(model.propose([20]), exact.propose([20]), strict=True):
        assert found.delta.dtype is dtype
        torch.testing.assert_close(found.delta.double(), expected.delta, rtol=0.05, atol=0.05)


def test_sparse_observations() -> None:
    """Observations further apart than the stride are taken as they come, and horizons stay in steps."""
    model = build(Linear(stride=2))
    for step in range(0, 150, 5):
        model.observe(torch.full((D,), 0.1 * step), 1.0, step)
    (proposal,) = model.propose([30])
    torch.testing.assert_close(proposal.delta, torch.full((D,), 3.0))


def test_none_never_proposes() -> None:
    """`none` watches and says nothing."""
    model = shown(Nothing())
    model.feedback(None, None)
    assert model.propose([5, 20]) == []
    assert model.state_dict() == {}
