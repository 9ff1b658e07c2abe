"""Guarded jumps in a run: what is moved, what is judged, and what a rejection leaves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import mapping_core.builtin
import mapping_plugin_slvt
from mapping_core import Callback, ConfigError, GuardConfig, MappingModel, MappingTrainer, PluginError, Registry
from mapping_core.builtin import Checkpoint
from mapping_core.interfaces.dynamics import Proposal
from mapping_core.interfaces.phase_policy import Phase, Verdict
from mapping_core.training.config import PredictionConfig
from mapping_core.training.prediction import Predictor
from tests import predictive, targets
from tests.predictive import Cycle, Extrapolate, weights

REGISTRY = Registry.of(mapping_core.builtin, mapping_plugin_slvt, predictive.Plugin)


def noisy(*, seed: int = 0) -> nn.Sequential:
    """Dropout, and running statistics: 6 -> 8 -> 3."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 3))


def model_of(mapped: bool) -> nn.Module:
    """The noisy network, through a latent or as it is."""
    return MappingModel(noisy(), 16, "slvt", registry=REGISTRY) if mapped else noisy()


class Watch(Callback):
    """Keeps the loss of each batch, what trains after it, and the trainer's phases."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.after: list[Tensor] = []
        self.before: list[Tensor] = []

    def on_batch_start(self, trainer: MappingTrainer, batch: Any) -> None:
        self.before.append(weights(trainer.model))

    def on_batch_end(self, trainer: MappingTrainer, record: Any) -> None:
        self.losses.append(float(record.loss))
        self.after.append(weights(trainer.model))


def trainer_of(
    model: nn.Module, factor: float | None = 1.0, *, guard: dict[str, Any] | None = None, **options: Any
) -> tuple[MappingTrainer, Watch]:
    """A trainer of four epochs of six steps; `factor` None is ordinary training."""
    watch = Watch()
    if factor is not None:
        options["prediction"] = PredictionConfig(
            policy=Cycle(),
            dynamics=Extrapolate(factor=factor),
            guard=GuardConfig(**{**predictive.FREE, **(guard or {})}),
            rate_factor=options.pop("rate_factor", 1.0),
        )
    settings: dict[str, Any] = {"max_epochs": 4, "seed": 0, "learning_rate": 1e-3, **options}
    loader = settings.pop("loader", None)
    if loader is None:
        loader = DataLoader(TensorDataset(*targets.rows(48)), batch_size=8, shuffle=True)
    callbacks = [watch, *settings.pop("callbacks", ())]
    trainer = MappingTrainer(
        model, loader, callbacks=callbacks, registry=REGISTRY, accelerator="cpu", progress=False, **settings
    )
    return trainer, watch


def verdicts(trainer: MappingTrainer) -> list[Verdict]:
    """What became of each jump."""
    return [each.jump.verdict for each in trainer.history.outcomes if each.jump is not None]


def state_of(trainer: MappingTrainer) -> tuple[list[Tensor], ...]:
    """Model with buffers, optimiser, and the generator."""
    assert trainer.optimizer is not None
    held = [value for state in trainer.optimizer.state.values() for value in state.values()]
    return [*trainer.model.state_dict().values()], held, [torch.get_rng_state()]


@pytest.mark.parametrize("mapped", [True, False])
@pytest.mark.parametrize("factor", [-3.0, float("nan"), 1e30])
def test_rejected_jumps_leave_nothing(mapped: bool, factor: float) -> None:
    """With every jump rejected a run is that without prediction, bit for bit: weights, buffers, moments, generator."""
    plain, seen = trainer_of(model_of(mapped), None)
    plain.fit()
    expected = state_of(plain)
    guarded, watch = trainer_of(model_of(mapped), factor, guard={"tau": 0.0, "deviations": 10.0})
    guarded.fit()
    kinds = set(verdicts(guarded))
    assert Verdict.ACCEPTED not in kinds
    assert kinds & {Verdict.REJECTED, Verdict.NON_FINITE}
    assert watch.losses == seen.losses
    for ours, theirs in zip(state_of(guarded), expected, strict=True):
        assert all(map(torch.equal, ours, theirs))


@pytest.mark.parametrize("mapped", [True, False])
def test_an_accepted_jump_moves_by_the_delta(mapped: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the last step before a PREDICT phase and the first after it, what trains moves by one delta, once."""
    kept: list[tuple[int, Tensor]] = []
    original = Predictor.jump

    def jump(self: Predictor, horizons: tuple[int, ...]) -> Any:
        outcome = original(self, horizons)
        if outcome.verdict is Verdict.ACCEPTED:
            (proposal, measured) = self._dynamics.told[-1]  # type: ignore[attr-defined]
            assert (proposal.horizon, measured) == (outcome.horizon, outcome.after)
            kept.append((self._loop.trainer.step, proposal.delta))
        return outcome

    monkeypatch.setattr(Predictor, "jump", jump)
    trainer, watch = trainer_of(model_of(mapped), 1.0, guard={"tau": 100.0, "risk": 1000.0})
    trainer.fit()
    assert kept
    moves = dict(kept)
    for step in range(1, len(watch.after)):
        here = watch.after[step - 1]
        assert torch.equal(watch.before[step], here + moves[step] if step in moves else here)


def test_phases_follow_the_outcomes() -> None:
    """An accepted jump is followed by CORRECT, a rejected one by FULL; the history has each phase and its measures."""
    trainer, _ = trainer_of(model_of(True), 1.0, guard={"tau": 100.0, "risk": 1000.0})
    outcomes = trainer.fit().outcomes
    after = {outcomes[i + 1].phase for i, each in enumerate(outcomes[:-1]) if each.jump and each.jump.probed}
    assert after == {Phase.CORRECT}
    jumps = [each.jump for each in outcomes if each.jump is not None]
    assert all(jump.horizon in (2, 5) and jump.forecast == 0.5 for jump in jumps)
    assert all(jump.before is not None and jump.bound is not None and jump.seconds > 0.0 for jump in jumps)
    assert sum(each.steps for each in outcomes) == trainer.step == 24


def test_unmeasured_is_none() -> None:
    """A jump that was not probed has no loss, bound or forecast."""
    trainer, _ = trainer_of(model_of(True), 1.0, guard={"share": 0.0})
    jumps = [each.jump for each in trainer.fit().outcomes if each.jump is not None]
    assert {jump.verdict for jump in jumps} == {Verdict.NO_COMPUTE}
    assert {(jump.horizon, jump.before, jump.after, jump.bound, jump.forecast) for jump in jumps} == {(None,) * 5}


def test_compute_is_reserved_before_it_is_spent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Probes never make more forward passes than the share of what the steps so far were worth."""
    counted = 0
    original = nn.Linear.forward
    spent: list[tuple[int, int]] = []

    def forward(self: nn.Linear, x: Tensor) -> Tensor:
        nonlocal counted
        counted += not torch.is_grad_enabled()
        return original(self, x)

    monkeypatch.setattr(nn.Linear, "forward", forward)

    class Count(Callback):
        def on_batch_end(self, trainer: MappingTrainer, record: Any) -> None:
            spent.append((trainer.step, counted // 2))

    trainer, _ = trainer_of(noisy(), -1.0, guard={"share": 0.3}, callbacks=[Count()])
    trainer.fit()
    assert spent[-1][1] > 0
    assert all(forwards <= 0.3 * 2.5 * step for step, forwards in spent)


def test_waiting_doubles() -> None:
    """After each rejection in a row the guard waits twice as long."""
    trainer, _ = trainer_of(model_of(True), -1.0, guard={"wait": 3}, max_epochs=8)
    trainer.fit()
    tries = [each.step for each in trainer.history.phases if each.phase is Phase.PREDICT]
    probed = [step for step, verdict in zip(tries, verdicts(trainer), strict=True) if verdict is Verdict.REJECTED]
    assert probed == [4, 8, 16, 28]  # at multiples of 4, at least 3, 6 and 12 after the last
    assert set(verdicts(trainer)) == {Verdict.REJECTED, Verdict.WAITING}


def test_rate_follows_jumps() -> None:
    """On request an accepted jump multiplies the learning rate, for the schedule to come too."""
    options: dict[str, Any] = {"guard": {"tau": 100.0, "risk": 1000.0}, "schedule": "constant", "warmup": 0.0}
    trainer, _ = trainer_of(model_of(True), 1.0, rate_factor=2.0, max_epochs=1, **options)
    trainer.fit()
    accepted = verdicts(trainer).count(Verdict.ACCEPTED)
    assert accepted == 1
    assert trainer.history.last.learning_rate == 2e-3


@pytest.mark.parametrize("mapped", [True, False])
def test_resumed_inside_every_phase(mapped: bool, tmp_path: Path) -> None:
    """A run that is stopped after any step, between a jump and its correction too, goes on bit for bit."""
    options: dict[str, Any] = {"guard": {"tau": 100.0, "risk": 1000.0, "wait": 2}, "rate_factor": 1.5}
    whole, seen = trainer_of(
        model_of(mapped), 1.0, run_dir=tmp_path, checkpoint_every=1, callbacks=[Checkpoint(keep_last=99)], **options
    )
    whole.fit()
    assert Verdict.ACCEPTED in verdicts(whole)
    for step in (5, 6, 11):
        again, watch = trainer_of(model_of(mapped), 1.0, **options)
        again.fit(resume=tmp_path / "checkpoints" / f"step-{step:08d}")
        assert watch.losses == seen.losses[step:]
        assert torch.equal(weights(again.model), weights(whole.model))
        assert verdicts(again) == verdicts(whole)


class NanAt(nn.Module):
    """Its output is NaN in training mode on the calls of a list that are made with a gradient."""

    def __init__(self, calls: list[int]) -> None:
        super().__init__()
        self.calls, self.count = calls, 0

    def forward(self, x: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            self.count += 1
        return x * float("nan") if torch.is_grad_enabled() and self.count in self.calls else x


@pytest.mark.parametrize("mapped", [True, False])
def test_a_jump_is_taken_back(mapped: bool) -> None:
    """A NaN in the steps that correct a jump puts weights, moments, schedule and step back to before the jump."""
    network = nn.Sequential(*noisy(), NanAt([6]))
    model = MappingModel(network, 16, "slvt", registry=REGISTRY) if mapped else network
    trainer, watch = trainer_of(model, 1.0, guard={"tau": 100.0, "risk": 1000.0, "wait": 1000}, rate_factor=2.0)
    history = trainer.fit()
    assert verdicts(trainer)[0] is Verdict.ROLLED_BACK
    assert Verdict.ACCEPTED not in verdicts(trainer)
    # Four steps, a jump, a step, the NaN: the next batch starts where the fourth step ended.
    assert torch.equal(watch.before[6], watch.after[3])
    assert not torch.equal(watch.before[4], watch.after[3])
    assert trainer.step == 24 - 2
    assert history.last.learning_rate < 1e-3


def test_other_sizes_and_unknown_names() -> None:
    """A displacement of another size, a model that nobody supplies and a missing one are errors that say so."""
    trainer, _ = trainer_of(model_of(True), 1.0)

    def propose(self: Any, horizons: Any) -> list[Proposal]:
        return [Proposal(horizon=1, delta=torch.ones(3))]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(predictive.Extrapolation, "propose", propose)
        with pytest.raises(PluginError, match=r"displacement of shape \[3\] for 16 trained numbers"):
            trainer.fit()
    with pytest.raises(ConfigError, match=r"prediction.dynamics.*no dynamics_model named 'nowcaster'"):
        trainer_of(model_of(True), None, prediction={"policy": "cycle", "dynamics": "nowcaster"})
    without, _ = trainer_of(model_of(True), None, prediction=PredictionConfig(policy="cycle"))
    with pytest.raises(ConfigError, match=r"prediction.dynamics: the phase policy asks for a jump"):
        without.fit()


class Stream(IterableDataset[tuple[Tensor, Tensor]]):
    """The rows in their order, one by one."""

    def __iter__(self) -> Any:
        return iter(zip(*targets.rows(48), strict=True))


@pytest.mark.parametrize("kind", ["list", "stream"])
def test_other_loaders(kind: str) -> None:
    """Probes draw from a list of batches, and take the last steps' batches of what can only be read on."""
    x, y = targets.rows(48)
    batches = [(x[i : i + 8], y[i : i + 8]) for i in range(0, 48, 8)]
    loader: Any = batches if kind == "list" else DataLoader(Stream(), batch_size=8)
    trainer, _ = trainer_of(model_of(True), 1.0, loader=loader, guard={"tau": 100.0, "risk": 1000.0})
    trainer.fit()
    assert Verdict.ACCEPTED in verdicts(trainer)


def test_with_accumulation_and_a_scaler() -> None:
    """Jumps are made between optimiser steps of several batches, in float16 with its scaler too."""
    for options in ({"accumulate": 2}, {"precision": "16-mixed"}, {"precision": "bf16-mixed"}):
        trainer, _ = trainer_of(model_of(True), 1.0, guard={"tau": 100.0, "risk": 1000.0}, **options)
        trainer.fit()
        assert Verdict.ACCEPTED in verdicts(trainer)
