"""The learning-rate finder: it finds a rate that trains, and leaves no trace."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

from mapping_core import Callback, ConfigError, DataError, MappingModel, MappingTrainer, find_learning_rate
from mapping_core.training.randomness import random_state
from tests import targets
from tests.processes import RANKS, on_two_ranks
from tests.targets import trainer_of


def network() -> nn.Module:
    """Dropout, running statistics, a vector of a spectral norm, a layer the user keeps in evaluation mode."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.utils.parametrizations.spectral_norm(nn.Linear(6, 8)), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 3)
    )


def own_generator() -> DataLoader[Any]:
    """A loader with a generator of the user's own."""
    generator = torch.Generator().manual_seed(5)
    data = TensorDataset(*targets.rows(22))
    return DataLoader(data, batch_size=4, sampler=RandomSampler(data, generator=generator), generator=generator)


def fingerprint(trainer: MappingTrainer, optimizer: torch.optim.Optimizer | None) -> Any:
    """All that a search could have touched, as plain values."""
    return plain(
        [
            dict(trainer.model.state_dict()),
            [(name, each) for name, each in trainer.model.named_buffers()],
            [each.grad for each in trainer.model.parameters()],
            trainer.loss.state_dict(),
            [module.training for module in trainer.model.modules()],
            None if optimizer is None else optimizer.state_dict(),
            random_state(trainer.train_loader),
            trainer.history.epochs,
            (trainer.step, trainer.epoch, trainer.batch, trainer.stop_reason),
        ]
    )


def plain(value: Any) -> Any:
    """Nested values with tensors as lists, which compare as a whole."""
    if isinstance(value, torch.Tensor):
        return (str(value.dtype), value.tolist())
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


MODELS: dict[str, Callable[[], nn.Module]] = {
    "mapped": lambda: MappingModel(network(), 24, "slvt", buffers="tracked"),
    "plain": network,
    "frozen part": targets.partly_frozen,
}


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("kind", list(MODELS))
def test_no_trace(kind: str, own: bool) -> None:
    """After a run and in its middle, a search changes no number, gradient, mode, generator, optimiser or record."""
    model = MODELS[kind]()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9) if own else None
    trainer = trainer_of(model, own_generator(), optimizer=optimizer)
    trainer.fit()
    model.eval()
    if isinstance(model, nn.Sequential):
        model[0].train()
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    grads = [parameter.grad for parameter in model.parameters()]
    random.seed(4)
    numpy.random.seed(4)
    before = fingerprint(trainer, optimizer)
    search = find_learning_rate(trainer, steps=12)
    assert len(search.rates) > 5
    assert fingerprint(trainer, optimizer) == before
    assert all(a is b.grad for a, b in zip(grads, model.parameters(), strict=True))


@pytest.mark.parametrize("precision", ["32-true", "16-mixed"])
def test_a_run_after_it_is_the_run_without_it(precision: str) -> None:
    """The losses of a run that a search went before are the same bits, with a gradient scaler too."""

    def losses(search: bool) -> Any:
        trainer = trainer_of(MODELS["mapped"](), targets.loader(22, shuffle=True), seed=None, precision=precision)
        torch.manual_seed(3)
        if search:
            find_learning_rate(trainer, steps=10, highest=1e6)
        return trainer.fit()["train_loss"]

    assert losses(True) == losses(False)


def test_callbacks_hear_nothing() -> None:
    """A search is no training that callbacks are told of."""

    class Hears(Callback):
        heard = 0

        def on_batch_start(self, trainer: MappingTrainer, batch: Any) -> None:
            self.heard += 1

    hears = Hears()
    find_learning_rate(trainer_of(callbacks=[hears]), steps=10)
    assert hears.heard == 0


def test_the_suggestion_trains() -> None:
    """Rates rise by one factor, and training at the suggested one is better than at a hundredth and a hundred times."""
    search = find_learning_rate(trainer_of(), lowest=1e-5, highest=10.0, steps=100)
    steps = torch.tensor(search.rates).log().diff()
    torch.testing.assert_close(steps, steps[0].expand_as(steps), rtol=1e-3, atol=1e-3)
    assert len(search.rates) == len(search.losses) == len(search.smoothed) <= 100
    assert search.suggestion is not None
    final = {
        share: trainer_of(learning_rate=search.suggestion * share, max_epochs=8).fit()["train_loss"][-1]
        for share in (0.01, 1.0, 100.0)
    }
    assert final[1.0] < min(final[0.01], final[100.0])


def test_it_ends_when_the_loss_diverges() -> None:
    """Rates that blow the loss up, to infinity too, end the search; what was measured stays finite."""
    model = targets.mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    search = find_learning_rate(trainer_of(model, optimizer=optimizer), lowest=1e-3, highest=1e30, steps=60)
    assert len(search.rates) < 60
    assert all(loss < float("inf") for loss in search.losses)


def test_it_ends_at_four_times_the_lowest_loss() -> None:
    """A loss that grows without end, and stays a number, ends the search too."""
    model = nn.Linear(1, 1)
    x = torch.ones(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    loader = DataLoader(TensorDataset(x, 3 * x), batch_size=8)
    search = find_learning_rate(trainer_of(model, loader, optimizer=optimizer), lowest=1e-3, highest=1e3, smoothing=0.0)
    assert len(search.rates) < 100
    assert search.smoothed == search.losses
    assert search.losses[-1] > 4 * min(search.losses)


def test_it_ends_at_a_gradient_that_is_not_finite() -> None:
    """A finite loss whose gradient is infinite ends the search before a step is made of it."""

    class Steep(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) + (self.weight - self.weight.detach()).sqrt().sum()

    search = find_learning_rate(trainer_of(Steep(6, 3)), steps=10)
    assert (search.rates, search.suggestion) == ((), None)


def test_groups_keep_their_ratio() -> None:
    """A group at a tenth of the first one's rate stays at a tenth."""
    model = targets.mlp()
    groups = [{"params": model[0].parameters(), "lr": 1.0}, {"params": model[2].parameters(), "lr": 0.1}]
    optimizer = torch.optim.SGD(groups)
    seen: list[tuple[float, float]] = []
    optimizer.register_step_pre_hook(
        lambda opt, *_: seen.append((opt.param_groups[0]["lr"], opt.param_groups[1]["lr"]))
    )
    find_learning_rate(trainer_of(model, optimizer=optimizer), steps=10)
    assert len(seen) == 10
    assert all(second == pytest.approx(first / 10) for first, second in seen)
    assert [group["lr"] for group in optimizer.param_groups] == [1.0, 0.1]


def test_accumulation_is_the_trainers() -> None:
    """A step takes `accumulate` batches: the first loss is the mean over their items."""
    single = find_learning_rate(trainer_of(None, targets.loader(24, batch_size=24)), steps=10)
    several = find_learning_rate(trainer_of(None, targets.loader(24, batch_size=7), accumulate=4), steps=10)
    assert several.losses == pytest.approx(single.losses, rel=1e-4)


def search_of(batch_size: int, devices: int) -> list[list[float]]:
    """Rates and losses of a search on one rank or several, in float64."""
    x, y = targets.rows(32)
    loader = DataLoader(TensorDataset(x.double(), y), batch_size=batch_size, shuffle=True)
    search = find_learning_rate(trainer_of(None, loader, precision="64-true", devices=devices), steps=20, highest=1.0)
    return [list(search.rates), list(search.losses)]


def on_a_rank(folder: Path) -> list[list[float]]:
    """What `test_two_ranks` runs on each."""
    return search_of(4, devices=RANKS)


def test_two_ranks(tmp_path: Path) -> None:
    """On two ranks a search is that of one process with the doubled batch, and both ranks know the same losses."""
    first, second = on_two_ranks("tests.unit.test_learning_rate:on_a_rank", tmp_path)
    alone = search_of(8, devices=1)
    assert first == second
    assert first[0] == alone[0]
    assert first[1] == pytest.approx(alone[1], rel=1e-10)


def test_a_loss_that_never_falls_has_no_suggestion() -> None:
    """Where nothing is learned there is nothing to suggest."""

    class Constant(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) * 0.0

    search = find_learning_rate(trainer_of(Constant(6, 3)), steps=10)
    assert search.suggestion is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lowest": 1.0, "highest": 0.1}, "lowest: needs 0 < lowest < highest, got 1.0 and 0.1"),
        ({"lowest": 0.0}, "lowest: needs 0 < lowest < highest, got 0.0"),
        ({"steps": 3}, "steps: must be >= 10: 3"),
        ({"smoothing": 1.0}, "smoothing: must be >= 0.0 and < 1.0: 1.0"),
    ],
)
def test_bad_ranges(options: dict[str, Any], message: str) -> None:
    """A range, a number of steps or a smoothing that cannot be is refused with its name."""
    with pytest.raises(ConfigError, match=message):
        find_learning_rate(trainer_of(), **options)


def test_bad_loaders() -> None:
    """A loader that one reading uses up, and one without batches, are refused."""
    with pytest.raises(DataError, match="train_loader is an iterator, which a search would use up"):
        find_learning_rate(trainer_of(None, iter(targets.loader())))
    with pytest.raises(DataError, match="train_loader is empty"):
        find_learning_rate(trainer_of(None, []))

    class Nothing:
        def __iter__(self) -> Any:
            return iter(())

    with pytest.raises(DataError, match="gave no batch to try a rate on"):
        find_learning_rate(trainer_of(None, Nothing()))
