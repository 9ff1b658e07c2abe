"""Two ranks, as `torchrun` starts them, are one process with the doubled batch."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from mapping_core import Callback, CheckpointError, MappingError, MappingModel, MappingTrainer
from mapping_core.builtin.losses.auto import AutoLoss
from mapping_core.interfaces.loss import LossStep
from mapping_core.training.checkpoint import checkpoints_in
from tests import targets
from tests.processes import RANKS, on_two_ranks


class Tokens(nn.Module):
    """Logits of each token, as a loss wants them; [N, T] -> [N, 3, T]."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(7, 5)
        self.head = nn.Linear(5, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.head(self.embedding(tokens))
        return logits.transpose(1, 2)


def sentences(count: int) -> TensorDataset:
    """Sentences of 4 tokens, of which more and more are ignored."""
    tokens = torch.randint(7, (count, 4), generator=torch.Generator().manual_seed(3))
    labels = (tokens * 2) % 3
    for index in range(count):
        labels[index, : index % 5] = -100
    return TensorDataset(tokens, labels)


def double_rows(count: int) -> TensorDataset:
    """Rows in float64."""
    x, y = targets.rows(count)
    return TensorDataset(x.double(), y)


#: Runs by name: the target, the samples, and options of the trainer. A batch is 4 on each of two ranks, or 8 on one.
RUNS: dict[str, tuple[Callable[[], nn.Module], TensorDataset, dict[str, Any]]] = {
    "plain": (targets.mlp, double_rows(32), {}),
    "uneven": (targets.mlp, double_rows(21), {}),
    "one sample more": (targets.mlp, double_rows(17), {}),
    "accumulated": (targets.mlp, double_rows(45), {"accumulate": 3}),
    "clipped": (targets.mlp, double_rows(21), {"clip_norm": 0.05}),
    "clipped by value": (targets.mlp, double_rows(21), {"clip_value": 0.01}),
    "tokens": (Tokens, sentences(21), {}),
    "tokens and all": (Tokens, sentences(45), {"accumulate": 3, "clip_norm": 0.05}),
}


def run_of(name: str, batch_size: int, devices: int) -> MappingTrainer:
    """Return the trainer of one of `RUNS`."""
    target, data, options = RUNS[name]
    return targets.trainer_of(
        MappingModel(target(), 24, "slvt"),
        DataLoader(data, batch_size=batch_size, shuffle=True),
        DataLoader(data, batch_size=3),
        **{"max_epochs": 2, "precision": "64-true", "devices": devices, **options},
    )


def told(trainer: MappingTrainer) -> dict[str, Any]:
    """What a run ended with."""
    return {
        "latent": targets.latent_of(trainer).tolist(),
        "history": [record.metrics() for record in trainer.history],
        "steps": trainer.step,
        "reason": trainer.history.stop_reason,
    }


class Stop(Callback):
    """Ends the run on one rank alone, or sends it a signal, after so many of its batches."""

    def __init__(self, batches: int, *, rank: int = 0, signum: int = 0) -> None:
        self.left, self.rank, self.signum = batches, rank, signum

    def on_batch_end(self, trainer: MappingTrainer, record: Any) -> None:
        self.left -= 1
        if self.left == 0 and rank_of(trainer) == self.rank:
            if self.signum:
                signal.raise_signal(self.signum)
            else:
                trainer.stop("enough")


def rank_of(trainer: MappingTrainer) -> int:
    """The rank of this process."""
    return 0 if trainer.is_first_rank else 1


class BadOnOneRank(AutoLoss):
    """A loss that is NaN, or has a NaN for its gradient, in one training batch of rank 1."""

    def __init__(self, at: int, *, gradient: bool) -> None:
        inner = targets.trainer_of().loss
        assert isinstance(inner, AutoLoss)
        super().__init__(classification=inner.classification, regression=inner.regression)
        self.at, self.gradient, self.calls = at, gradient, 0

    def forward(self, step: LossStep) -> Tensor:
        loss = super().forward(step)
        if not torch.is_grad_enabled():
            return loss
        self.calls += 1
        if self.calls != self.at or torch.distributed.get_rank() == 0:
            return loss
        if self.gradient:
            poison: Tensor = (0.0 * step.predictions.sum()).abs().sqrt()  # finite, and its gradient is not
            return loss + poison
        return loss * float("nan")


def dropping(folder: Path | None, count: int = 22, **options: Any) -> MappingTrainer:
    """Return a run whose dropout, statistics and lengths (by `count`) differ between ranks."""
    torch.manual_seed(0)
    # A BatchNorm refuses the one sample that an uneven end leaves.
    norm = nn.BatchNorm1d(8) if count % 6 != 1 else nn.LayerNorm(8)
    target = nn.Sequential(nn.Linear(6, 8), norm, nn.Dropout(0.3), nn.ReLU(), nn.Linear(8, 3))
    return targets.trainer_of(
        MappingModel(target, 24, "slvt"),
        targets.loader(count, batch_size=3, shuffle=True),
        targets.loader(10, batch_size=4),
        **{"run_dir": folder, "devices": RANKS, "seed": 3, **options},
    )


def state_of(trainer: MappingTrainer) -> dict[str, Any]:
    """The numbers and statistics of a model, and its history."""
    return {name: tensor.tolist() for name, tensor in trainer.model.state_dict().items()} | {
        "history": [record.metrics() for record in trainer.history]
    }


def ended(trainer: MappingTrainer, **how: Any) -> dict[str, Any]:
    """What a run ended with, or the error or exit that ended it."""
    try:
        trainer.fit(**how)
    except (MappingError, SystemExit) as error:
        return {"error": f"{type(error).__name__}: {error}", **told(trainer)}
    return told(trainer) | {"state": state_of(trainer)}


def resumed(folder: Path, count: int, options: dict[str, Any], *stops: Stop) -> dict[str, Any]:
    """A run, and the same one interrupted at each of `stops`."""
    whole = ended(dropping(None, count, **options | {"checkpoint_every": None}))
    interrupted = [ended(dropping(folder, count, callbacks=[stop], **options), resume="last") for stop in stops]
    return {
        "whole": whole,
        "interrupted": interrupted,
        "resumed": ended(dropping(folder, count, **options), resume="last"),
        "checkpoints": [path.name for path in checkpoints_in(folder)] if torch.distributed.get_rank() == 0 else [],
    }


class Plateau(Callback):
    """Says that this rank, the second one alone, has seen enough epochs."""

    def on_epoch_end(self, trainer: MappingTrainer, record: Any) -> None:
        if rank_of(trainer) == 1 and record.epoch == 1:
            trainer.stop("seen enough")


def scenarios(folder: Path) -> dict[str, Any]:
    """Everything that the tests below ask of two ranks, in one start of them."""
    import torchmetrics

    found: dict[str, Any] = {}
    for name in RUNS:
        found[name] = ended(run_of(name, 4, RANKS))
    found["resume"] = resumed(folder / "a", 22, {}, Stop(2), Stop(5, rank=1))
    found["resume accumulated"] = resumed(folder / "b", 35, {"accumulate": 4}, Stop(5))
    found["resume uneven"] = resumed(folder / "c", 19, {"checkpoint_every": 1}, Stop(5, signum=signal.SIGTERM))
    found["one signal"] = resumed(folder / "d", 22, {}, Stop(3, rank=1, signum=signal.SIGINT))
    early = {"max_epochs": 30, "callbacks": [{"type": "early_stopping", "patience": 1, "min_delta": 9.0}]}
    found["early stopping"] = ended(dropping(None, 22, **early))
    found["one rank's callback"] = ended(dropping(None, 22, max_epochs=30, callbacks=[Plateau()]))
    for gradient in (False, True):
        for policy in ("raise", "skip", "rollback"):
            loss = BadOnOneRank(4, gradient=gradient)
            found[f"{policy} {gradient}"] = ended(dropping(None, 22, loss=loss, nonfinite=policy))
    metric = torchmetrics.Accuracy(task="multiclass", num_classes=3)
    found["metric"] = dropping(None, 22, metrics={"own": metric}).validate(targets.loader(11, batch_size=2))
    found["predictions"] = dropping(None).predict(targets.loader(7, batch_size=2)).tolist()
    other = MappingModel(targets.mlp(seed=torch.distributed.get_rank()), 24)
    found["other weights"] = ended(targets.trainer_of(other, devices=RANKS))
    found["traffic"], found["unused"] = traffic(), unused()
    dropping(folder / "inside", 24, callbacks=[Stop(3)]).fit()
    dropping(folder / "end", 24).fit()
    return found


def traffic() -> list[int]:
    """The sizes in bytes of the reductions of a step, with a base, frozen weights and a mapper that must not travel."""
    sizes: list[int] = []
    plain = torch.distributed.all_reduce

    def counting(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        sizes.append(tensor.numel() * tensor.element_size())
        return plain(tensor, *args, **kwargs)

    class Watch(Callback):
        def on_batch_start(self, trainer: MappingTrainer, batch: Any) -> None:
            sizes.clear()

    model = MappingModel(targets.mlp(), 20, frozen="0.weight", trained="2.bias")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.distributed, "all_reduce", counting)
        targets.trainer_of(model, targets.loader(24, batch_size=12), devices=RANKS, callbacks=[Watch()]).fit()
    return sizes


class Detour(nn.Module):
    """A layer that is called on the second rank alone, and one that is never called."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body, self.sometimes, self.never = nn.Linear(6, 3), nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.body(x)
        return hidden + self.sometimes(hidden) if torch.distributed.get_rank() else hidden


def unused() -> dict[str, Any]:
    """A run in which directly trained parameters get gradients on one rank alone, or on none."""
    model = MappingModel(Detour(), 40, trained=("sometimes", "never"))
    return ended(targets.trainer_of(model, devices=RANKS))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where both ranks write."""
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def ranks(folder: Path) -> list[dict[str, Any]]:
    """Give what both ranks found."""
    return on_two_ranks("tests.integration.test_two_ranks:scenarios", folder)


@pytest.mark.parametrize("name", list(RUNS))
def test_two_ranks_are_one_process(name: str, ranks: list[dict[str, Any]]) -> None:
    """Latent, losses, and metrics over all items are those of one process with the doubled batch, to 1e-10."""
    alone = run_of(name, 8, 1)
    alone.fit()
    for rank in ranks:
        torch.testing.assert_close(
            torch.tensor(rank[name]["latent"], dtype=torch.float64), targets.latent_of(alone), rtol=0, atol=1e-10
        )
        assert rank[name]["steps"] == alone.step
        for record, expected in zip(rank[name]["history"], alone.history, strict=True):
            assert record == pytest.approx(expected.metrics(), abs=1e-7)  # accuracies are in float32
            assert record["train_loss"] == pytest.approx(expected.train["loss"], abs=1e-10)
            assert record["val_loss"] == pytest.approx(expected.validation["loss"], abs=1e-10)
    assert ranks[0][name]["latent"] == ranks[1][name]["latent"]


@pytest.mark.parametrize(
    ("name", "steps"), [("resume", [2, 7]), ("resume accumulated", [2]), ("resume uneven", [5]), ("one signal", [3])]
)
def test_an_interrupted_run_goes_on(name: str, steps: list[int], ranks: list[dict[str, Any]]) -> None:
    """Ended by one rank's callback or signal, both ranks end at one step; resumed, the run is bit for bit the whole."""
    for rank in ranks:
        found = rank[name]
        assert [each["steps"] for each in found["interrupted"]] == steps
        assert found["resumed"] == found["whole"] == ranks[0][name]["whole"]
    assert f"step-{steps[-1]:08d}" in ranks[0][name]["checkpoints"] or len(ranks[0][name]["checkpoints"]) == 2


def test_both_ranks_end_together(ranks: list[dict[str, Any]]) -> None:
    """Early stopping, one rank's callback and one rank's signal end both, with the same reason or exit."""
    for rank in ranks:
        assert rank["early stopping"]["reason"].startswith("early stopping: val_loss has not improved")
        assert rank["one rank's callback"]["reason"] == "seen enough"
        assert rank["one rank's callback"]["steps"] == 8
        assert rank["one signal"]["interrupted"][0]["error"] == "Interrupted: training was ended by SIGINT"


@pytest.mark.parametrize("gradient", [False, True])
def test_nan_on_one_rank(gradient: bool, ranks: list[dict[str, Any]]) -> None:
    """A loss or gradient that is NaN on one rank alone makes no step on either, by each policy."""
    for rank in ranks:
        assert "NonFiniteError: " in rank[f"raise {gradient}"]["error"]
        assert rank[f"raise {gradient}"]["steps"] == 3
        assert rank[f"skip {gradient}"]["steps"] == 7
        assert rank[f"rollback {gradient}"]["steps"] == 4
        for policy in ("raise", "skip", "rollback"):
            found = rank[f"{policy} {gradient}"]
            assert found["latent"] == ranks[0][f"{policy} {gradient}"]["latent"]
            assert torch.tensor(found["latent"]).isfinite().all()


def test_evaluation_on_two_ranks(ranks: list[dict[str, Any]]) -> None:
    """A torchmetrics metric counts all ranks' items, and every rank predicts everything."""
    alone = dropping(None, 22, devices=1)
    made = alone.validate(targets.loader(11, batch_size=2))
    for rank in ranks:
        assert rank["metric"] == pytest.approx({**made, "own": made["accuracy"]}, rel=1e-6)
        assert rank["predictions"] == alone.predict(targets.loader(7, batch_size=2)).tolist()


def test_only_what_trains_travels(ranks: list[dict[str, Any]]) -> None:
    """A step sends 4 bytes a trainable number, and two messages of some words; cf. D24."""
    latent, direct, words = 17, 3, 4
    for rank in ranks:
        # How the window went, the gradient, what was asked for; and the same without a gradient at the epoch's end.
        first = [8 * (words + 2), 4 * (latent + direct), 8 * 3]
        assert rank["traffic"][:3] == first
        assert sum(rank["traffic"]) < sum(first) + 8 * (words + 2) + 3 * 8 * 3


def test_unused_parameters(ranks: list[dict[str, Any]]) -> None:
    """A parameter that the loss does not reach, on one rank or on any, holds up nobody; cf. D23."""
    for rank in ranks:
        assert rank["unused"]["steps"] == 4
        assert rank["unused"]["latent"] == ranks[0]["unused"]["latent"]
        *_, sometimes, never = torch.split(torch.tensor(rank["unused"]["latent"]), [16, 12, 12])
        direct = Detour()
        assert not torch.equal(sometimes[:9], direct.sometimes.weight.detach().flatten())
        assert torch.equal(never[:9], direct.never.weight.detach().flatten())


def test_ranks_that_made_other_models(ranks: list[dict[str, Any]]) -> None:
    """A target that was drawn anew on each rank is refused on both, before a step."""
    for rank in ranks:
        assert "the target has other weights on rank 1 than on rank 0" in rank["other weights"]["error"]


def test_the_first_rank_writes(ranks: list[dict[str, Any]], folder: Path) -> None:
    """A run's log tells each event once."""
    assert ranks
    events = [json.loads(line)["event"] for line in (folder / "end" / "log.jsonl").read_text().splitlines()]
    assert events.count("fit_start") == events.count("fit_end") == 1
    assert events.count("epoch") == 2


def test_another_number_of_ranks(ranks: list[dict[str, Any]], folder: Path) -> None:
    """One process goes on from two ranks' checkpoint at an epoch's end, and refuses one inside an epoch."""
    assert ranks
    longer = dropping(folder / "end", 24, devices=1, max_epochs=3)
    assert len(longer.fit(resume="last")) == 3
    with pytest.raises(CheckpointError, match=r"lies inside an epoch, .*\(ranks 2 -> 1\)"):
        dropping(folder / "inside", 24, devices=1).fit(resume="last")
