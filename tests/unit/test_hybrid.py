"""`HybridTrainer`: the typical loop, and that it is the trainer's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import mapping_core
from mapping_core import CheckpointError, GuardConfig, HybridTrainer, HybridTrainerConfig, NonFiniteError
from mapping_core.interfaces.phase_policy import Phase, Verdict
from mapping_core.training.config import PredictionConfig
from tests import predictive, targets
from tests.predictive import Cycle, Extrapolate, weights
from tests.unit.test_jumps import REGISTRY, model_of, trainer_of

#: Jumps at once, whatever they do.
JUMPING = PredictionConfig(
    policy=Cycle(),
    dynamics=Extrapolate(),
    guard=GuardConfig(**{**predictive.FREE, "tau": 100.0, "risk": 1000.0}),
)


def batches(count: int = 24) -> list[tuple[Tensor, Tensor]]:
    """Batches of eight rows."""
    x, y = targets.rows(8 * count)
    return list(zip(torch.split(x, 8), torch.split(y, 8), strict=True))


def hybrid(model: nn.Module, **options: Any) -> HybridTrainer:
    """A trainer with Adam."""
    config = HybridTrainerConfig(**{"seed": 0, "accelerator": "cpu", **options})
    return HybridTrainer(model, torch.optim.Adam(model.parameters(), 0.01), config, registry=REGISTRY)


@pytest.mark.parametrize("mapped", [True, False])
def test_the_typical_loop(mapped: bool) -> None:
    """The loop of the description works as written, and ends where a `MappingTrainer` on the same batches ends."""
    loader, model = batches(), model_of(mapped)
    config = mapping_core.HybridTrainerConfig(seed=0, accelerator="cpu")
    trainer = HybridTrainer(model, torch.optim.Adam(model.parameters(), 0.01), config)
    seen = []
    for batch in loader:
        result = trainer.step(batch)
        assert isinstance(result, mapping_core.StepResult)
        seen.append((result.loss, result.phase))
    other = model_of(mapped)
    optimizer = torch.optim.Adam(other.parameters(), 0.01)
    plain, watch = trainer_of(other, None, loader=loader, optimizer=optimizer, max_epochs=1, learning_rate=None)
    plain.fit()
    assert seen == [(loss, Phase.FULL) for loss in watch.losses]
    assert torch.equal(weights(model), weights(other))


@pytest.mark.parametrize("mapped", [True, False])
def test_results_say_what_was_measured(mapped: bool) -> None:
    """Jumps, errors and norms stand in the result of the batch they belong to, and None everywhere else."""
    trainer = hybrid(model_of(mapped), prediction=JUMPING)
    results = [trainer.step(batch) for batch in batches()]
    jumped = [each.step for each in results if each.was_predicted]
    assert jumped == [5, 12, 19]
    assert [each.step for each in results if each.jump is not None] == jumped
    assert {each.jump.verdict for each in results if each.jump is not None} == {Verdict.ACCEPTED}
    assert [each.step for each in results if each.prediction_error is not None] == [8, 15, 22]
    assert all(each.gradient_norm is not None and each.gradient_norm > 0.0 for each in results)
    assert all(each.step_time_ms > 0.0 and each.learning_rate == 0.01 for each in results)
    assert all(0.0 <= each.metrics["accuracy"] <= 1.0 and "loss" not in each.metrics for each in results)
    assert len(trainer.history.outcomes) > 6


def test_accumulated() -> None:
    """A window's optimiser step comes with its last batch; before it there is no norm, and nothing to save."""
    trainer = hybrid(model_of(True), accumulate=2)
    results = [trainer.step(batch) for batch in batches(4)]
    assert [each.step for each in results] == [0, 1, 1, 2]
    assert [each.gradient_norm is None for each in results] == [True, False, True, False]
    trainer.step(batches(1)[0])
    with pytest.raises(CheckpointError, match="batches wait for their optimiser step"):
        trainer.save("nowhere")


@pytest.mark.parametrize("mapped", [True, False])
def test_saved_and_loaded_inside_a_phase(mapped: bool, tmp_path: Path) -> None:
    """A trainer that is loaded between a jump and its correction goes on bit for bit."""
    whole = hybrid(model := model_of(mapped), prediction=JUMPING)
    losses = []
    for number, batch in enumerate(batches()):
        losses.append(whole.step(batch).loss)
        if number == 5:
            whole.save(tmp_path / "state")
    again = hybrid(other := model_of(mapped), prediction=JUMPING)
    again.load(tmp_path / "state")
    assert [again.step(batch).loss for batch in batches()[6:]] == losses[6:]
    assert torch.equal(weights(model), weights(other))


def test_what_is_not_finite() -> None:
    """A NaN is an error before the optimiser sees it, or a batch that is skipped, without metrics."""
    bad = (torch.full((8, 6), float("nan")), batches(1)[0][1])
    with pytest.raises(NonFiniteError, match="loss is nan"):
        hybrid(model_of(True)).step(bad)
    trainer = hybrid(model := model_of(True), nonfinite="skip")
    before = weights(model)
    result = trainer.step(bad)
    assert (result.gradient_norm, result.metrics) == (None, {})
    assert torch.equal(weights(model), before)


def test_a_model_in_evaluation_mode() -> None:
    """A model that is in evaluation mode as a whole is put into training mode, as `fit` does."""
    model = model_of(False).eval()
    hybrid(model).step(batches(1)[0])
    assert model.training
