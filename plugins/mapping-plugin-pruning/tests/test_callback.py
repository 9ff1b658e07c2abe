"""The callback `pruning`: its plan, and what it does to a run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mapping_core import Callback, ConfigError, MappingModel, MappingTrainer
from mapping_core.target.wrappers import unwrapped
from mapping_plugin_pruning import Pruned, Pruning, kept
from mapping_plugin_pruning._callback import PruningCallback
from mapping_plugin_pruning._plan import plan

TOTAL = 163  # weights of the network below


def network() -> nn.Sequential:
    """Two linear layers; [N, 6] -> [N, 3]."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))


def batches() -> list[tuple[Tensor, Tensor]]:
    """Ten batches whose class is the largest of the first three numbers."""
    x = torch.randn(160, 6, generator=torch.Generator().manual_seed(0))
    return [(part, part[:, :3].argmax(1)) for part in torch.split(x, 16)]


class Watch(Callback):
    """Notes how many weights are kept and what trains, after every step."""

    def __init__(self) -> None:
        self.kept: list[int] = []
        self.vectors: list[Tensor] = []

    def on_fit_start(self, trainer: MappingTrainer) -> None:
        self._note(trainer)

    def on_batch_end(self, trainer: MappingTrainer, record: Any) -> None:
        self._note(trainer)

    def _note(self, trainer: MappingTrainer) -> None:
        model = unwrapped(trainer.model)
        assert isinstance(model, MappingModel)
        self.kept.append(kept(model))
        self.vectors.append(model.latent_vector())


def trained(pruning: Pruning, **options: Any) -> tuple[MappingModel, Watch, MappingTrainer]:
    """Train for 40 steps under a schedule."""
    model = MappingModel(network(), 60, Pruned(**options))
    watch = Watch()
    trainer = MappingTrainer(
        model,
        batches(),
        max_epochs=4,
        callbacks=[PruningCallback(pruning), watch],
        seed=0,
        accelerator="cpu",
        progress=False,
    )
    trainer.fit()
    return model, watch, trainer


def test_one_shot() -> None:
    """All is pruned at once, at its step, and stays so until the end."""
    model, watch, trainer = trained(Pruning(keep=0.5, schedule="one_shot", begin=0.25))
    assert watch.kept == [TOTAL] * 10 + [82] * 31
    assert kept(model) == 82
    assert trainer.history["train_loss"][-1] < trainer.history["train_loss"][0]


def test_before_the_first_step() -> None:
    """A schedule that begins at 0 prunes the start."""
    _, watch, _ = trained(Pruning(keep=0.5, schedule="one_shot", begin=0.0))
    assert set(watch.kept) == {82}


def test_gradual() -> None:
    """The cubic schedule prunes fast at first and reaches its part at its end."""
    _, watch, _ = trained(Pruning(keep=0.2, begin=0.25, end=0.75, every=5))
    steps = [watch.kept[step] for step in (9, 10, 15, 20, 25, 29, 30, 40)]
    expected = [round(TOTAL * (1 - 0.8 * (1 - (1 - t) ** 3))) for t in (0.0, 0.25, 0.5, 0.75)]
    assert steps == [TOTAL, *expected, expected[-1], 33, 33]


def test_iterative() -> None:
    """Rounds leave the same ratio each, evenly apart."""
    _, watch, _ = trained(Pruning(keep=0.125, schedule="iterative", begin=0.25, end=0.75, rounds=3))
    assert [watch.kept[step] for step in (9, 10, 20, 30)] == [TOTAL, 82, 41, 20]


def test_rewinding() -> None:
    """After each round what trains is where it was at the rewinding step, and the optimiser knows nothing of later."""
    pruning = Pruning(keep=0.25, schedule="iterative", begin=0.25, end=0.5, rounds=2, rewind=0.1)
    _, watch, _ = trained(pruning)
    for step in (10, 20):
        assert torch.equal(watch.vectors[step], watch.vectors[4])
        assert not torch.equal(watch.vectors[step - 1], watch.vectors[4])
    assert not torch.equal(watch.vectors[11], watch.vectors[5])  # other masks, other gradients


def test_state() -> None:
    """What is needed to go back survives a restart."""
    callback = PruningCallback(Pruning(schedule="iterative", rewind=0.0))
    assert callback.state_dict() == {}
    callback.load_state_dict({"remembered": torch.ones(3)})
    assert torch.equal(callback.state_dict()["remembered"], torch.ones(3))


def test_by_name_in_a_list() -> None:
    """The callback is a component as any: its name is enough."""
    model = MappingModel(network(), 60, "pruned")
    MappingTrainer(
        model, batches(), max_epochs=4, callbacks=["pruning"], seed=0, accelerator="cpu", progress=False
    ).fit()
    assert kept(model) == 16


def test_refusals() -> None:
    """Without the strategy, or without a length of the run, training does not start."""

    class Endless:
        def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
            return iter(batches())

    for model, loader, message in (
        (network(), batches(), "needs the strategy 'pruned' of a MappingModel"),
        (MappingModel(network(), 20, "pruned"), Endless(), "must know how long the run is: set max_steps"),
    ):
        trainer = MappingTrainer(model, loader, callbacks=["pruning"], accelerator="cpu", progress=False)
        with pytest.raises(ConfigError, match=message):
            trainer.fit()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"keep": 0.0}, "keep"),
        ({"begin": 1.5}, "begin"),
        ({"every": 0}, "every"),
        ({"schedule": "slow"}, "schedule"),
        ({"begin": 0.5, "end": 0.4}, "'end' must not be before 'begin'"),
        ({"rewind": 0.0}, "'rewind' is for schedule 'iterative'"),
        ({"schedule": "iterative", "rewind": 0.2}, "'rewind' must not be after 'begin'"),
    ],
)
def test_wrong_values(options: dict[str, Any], message: str) -> None:
    """Values out of range or in the wrong order are errors of the configuration."""
    with pytest.raises(ValueError, match=message):
        Pruning(**options)


@pytest.mark.parametrize("total", [1, 3, 10, 1000])
@pytest.mark.parametrize("schedule", ["one_shot", "gradual", "iterative"])
def test_plans(schedule: Any, total: int) -> None:
    """Every plan ends at the part to keep, within the run, and never asks for more than before."""
    made = plan(Pruning(keep=0.3, schedule=schedule, begin=0.2, end=0.9, every=7, rounds=5), total)
    assert list(made) == sorted(made)
    assert all(0 <= step <= total for step in made)
    assert list(made.values()) == sorted(made.values(), reverse=True)
    assert list(made.values())[-1] == pytest.approx(0.3)
