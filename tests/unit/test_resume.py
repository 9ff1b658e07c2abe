"""Going on from a checkpoint: the run ends as if it had never stopped, bit for bit."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, RandomSampler, TensorDataset, WeightedRandomSampler

from mapping_core import Callback, CheckpointError, MappingModel, MappingTrainer
from mapping_core.errors import FileFormatError
from mapping_core.training.checkpoint import checkpoints_in
from tests import targets


class Noisy(Dataset[tuple[Tensor, Tensor]]):
    """Samples augmented by all three of Python's, NumPy's and torch's generators."""

    def __init__(self, count: int = 22) -> None:
        self.x, self.y = targets.rows(count)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        noise = random.gauss() + float(numpy.random.rand()) + torch.rand(())
        return self.x[index] + 0.1 * noise, self.y[index]


def weighted() -> DataLoader[Any]:
    """A sampler of the user's own."""
    data = TensorDataset(*targets.rows(22))
    return DataLoader(data, batch_size=4, sampler=WeightedRandomSampler([1.0] * 11 + [2.0] * 11, 22))


def seeded() -> DataLoader[Any]:
    """A generator of the user's own."""
    generator = torch.Generator().manual_seed(5)
    data = TensorDataset(*targets.rows(22))
    return DataLoader(data, batch_size=4, sampler=RandomSampler(data, generator=generator), generator=generator)


LOADERS: dict[str, Callable[[], Any]] = {
    "shuffled": lambda: targets.loader(22, batch_size=4, shuffle=True),
    "in order": lambda: targets.loader(22, batch_size=4),
    "augmented": lambda: DataLoader(Noisy(), batch_size=4, shuffle=True),
    "augmented by a worker": lambda: DataLoader(Noisy(), batch_size=4, shuffle=True, num_workers=1),
    "own sampler": weighted,
    "own generator": seeded,
    "a list": lambda: list(targets.loader(22, batch_size=4)),
}


def trainer(folder: Path | None, loader: Any = None, **options: Any) -> MappingTrainer:
    """A run with dropout and running statistics, 6 batches an epoch, 3 epochs."""
    torch.manual_seed(0)
    target = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.ReLU(), nn.Linear(8, 3))
    return MappingTrainer(
        MappingModel(target, 24, "slvt"),
        loader or LOADERS["shuffled"](),
        targets.loader(10, batch_size=4),
        **{"max_epochs": 3, "seed": 3, "run_dir": folder, "progress": False, "accelerator": "cpu", **options},
    )


class StopAt(Callback):
    """Ends the run after so many batches."""

    def __init__(self, batches: int) -> None:
        self.left = batches

    def on_batch_end(self, trainer: MappingTrainer, record: Any) -> None:
        self.left -= 1
        if self.left == 0:
            trainer.stop("enough")


def outcome(made: MappingTrainer) -> tuple[Any, ...]:
    """What must be equal: trained numbers, statistics, and every value of the history."""
    state = made.model.state_dict()
    return {name: tensor.tolist() for name, tensor in state.items()}, [
        (record.epoch, record.step, record.train, record.validation, record.learning_rate) for record in made.history
    ]


@pytest.mark.parametrize("stop", [1, 4, 6, 9])
@pytest.mark.parametrize("kind", list(LOADERS))
def test_a_resumed_run_is_the_uninterrupted_one(kind: str, stop: int, tmp_path: Path) -> None:
    """Stopped anywhere, with any loader, a new process' trainer ends with the same bits."""
    whole = trainer(None, LOADERS[kind]())
    whole.fit()
    trainer(tmp_path, LOADERS[kind](), callbacks=[StopAt(stop)]).fit()
    resumed = trainer(tmp_path, LOADERS[kind]())
    resumed.fit(resume="last")
    assert outcome(resumed) == outcome(whole)


@pytest.mark.parametrize(
    "options",
    [
        {"accumulate": 4},
        {"accumulate": 4, "clip_norm": 0.1},
        {"precision": "bf16-mixed"},
        {"precision": "16-mixed"},
        {"seed": None},
        {"checkpoint_every": 1},
    ],
    ids=str,
)
def test_whatever_the_options(options: dict[str, Any], tmp_path: Path) -> None:
    """The same with accumulation, clipping, mixed precision, without a seed."""
    whole = trainer(None, **options | {"checkpoint_every": None})
    whole.fit()
    trainer(tmp_path, callbacks=[StopAt(8)], **options).fit()
    resumed = trainer(tmp_path, **options)
    torch.manual_seed(99)
    resumed.fit(resume="last")
    assert outcome(resumed) == outcome(whole)


def test_max_steps_then_on(tmp_path: Path) -> None:
    """A run that `max_steps` ended in an epoch's middle goes on from that batch: no sample twice, none left out."""
    seen: list[int] = []
    data = TensorDataset(torch.arange(22.0)[:, None].repeat(1, 6), torch.arange(22) % 3)

    class Notes(Callback):
        def on_batch_start(self, trainer: MappingTrainer, batch: Any) -> None:
            seen.extend(int(row[0]) for row in batch[0])

    def run(**options: Any) -> MappingTrainer:
        return trainer(
            tmp_path, DataLoader(data, batch_size=4, shuffle=True), max_epochs=1, callbacks=[Notes()], **options
        )

    run(max_steps=3).fit()
    run().fit(resume="last")
    assert sorted(seen) == list(range(22))


def test_resume_without_a_checkpoint_begins(tmp_path: Path) -> None:
    """`resume="last"` in an empty folder begins at the beginning; without a folder it is refused."""
    assert len(trainer(tmp_path).fit(resume="last")) == 3
    with pytest.raises(CheckpointError, match="resume='last' looks in run_dir, which is not set"):
        trainer(None).fit(resume="last")


def test_resume_from_the_best(tmp_path: Path) -> None:
    """`resume="best"` goes on from the epoch with the least validation loss; later checkpoints are set aside."""
    first = trainer(tmp_path, max_epochs=6, learning_rate=2.0)
    losses = first.fit()["val_loss"]
    best = losses.index(min(losses))
    resumed = trainer(tmp_path, max_epochs=6, learning_rate=2.0)
    resumed.fit(resume="best")
    assert outcome(resumed) == outcome(first)
    marker = (tmp_path / "checkpoints" / "best").read_text().strip()
    assert marker == f"step-{6 * (best + 1):08d}"


def test_a_path(tmp_path: Path) -> None:
    """A checkpoint's own path resumes from it, in another folder too, and the earlier run stays as it is."""
    whole = trainer(None)
    whole.fit()
    trainer(tmp_path / "a", callbacks=[StopAt(7)]).fit()
    before = checkpoints_in(tmp_path / "a")
    resumed = trainer(tmp_path / "b")
    resumed.fit(resume=before[-1])
    assert outcome(resumed) == outcome(whole)
    assert checkpoints_in(tmp_path / "a") == before


def test_earlier_runs_are_set_aside(tmp_path: Path) -> None:
    """A new run in a used folder moves the earlier one's checkpoints away, from where it can still go on."""
    whole = trainer(None)
    whole.fit()
    trainer(tmp_path, callbacks=[StopAt(7)]).fit()
    trainer(tmp_path, callbacks=[StopAt(2)]).fit()
    assert [path.name for path in checkpoints_in(tmp_path)] == ["step-00000002"]
    resumed = trainer(tmp_path)
    resumed.fit(resume=tmp_path / "earlier-001" / "checkpoints" / "step-00000007")
    assert outcome(resumed) == outcome(whole)


def test_an_unseeded_target_goes_on(tmp_path: Path) -> None:
    """The run's folder holds the base: a script whose target starts otherwise each time goes on all the same."""
    trainer(tmp_path, callbacks=[StopAt(7)]).fit()
    whole, resumed = trainer(None), trainer(tmp_path)
    torch.manual_seed(77)
    other = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.ReLU(), nn.Linear(8, 3))
    resumed.model = MappingModel(other, 24, "slvt")
    resumed.fit(resume="last")
    whole.fit()
    assert outcome(resumed) == outcome(whole)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"accumulate": 2}, r"lies inside an epoch, .*\(accumulate 1 -> 2\): resume from an epoch's end"),
        ({"loader": list(targets.loader(8, batch_size=4))}, r"batches an epoch 6 -> 2"),
    ],
)
def test_other_settings_inside_an_epoch(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    """Inside an epoch, settings that decide what a batch is must be the same."""
    trainer(tmp_path, callbacks=[StopAt(7)]).fit()
    with pytest.raises(CheckpointError, match=message):
        trainer(tmp_path, **change).fit(resume="last")


def test_another_model_or_optimizer(tmp_path: Path) -> None:
    """A checkpoint of another model or optimiser is refused by name, and the model keeps its numbers."""
    trainer(tmp_path, callbacks=[StopAt(7)]).fit()
    other = trainer(tmp_path)
    other.model = MappingModel(targets.mlp(), 24, "slvt")
    with pytest.raises(FileFormatError, match=r"differs from this one in .*layout"):
        other.fit(resume="last")
    assert not other.model.latent_vector().any()
    model = trainer(None).model
    with pytest.raises(CheckpointError, match="was written with AdamW, this run has SGD"):
        MappingTrainer(
            model,
            LOADERS["shuffled"](),
            optimizer=torch.optim.SGD(model.parameters(), 0.1),
            progress=False,
            run_dir=tmp_path,
        ).fit(resume="last")
