"""The exponential moving average: what it is, who sees it, and that a resumed run has the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

from mapping_core import Callback, CallbackError, ConfigError, MappingModel, MappingTrainer
from mapping_core.builtin.callbacks import Ema
from mapping_core.builtin.callbacks.ema import EmaCallback
from mapping_core.contexts import CallbackContext
from tests import targets
from tests.targets import trainer_of


def latent_of(trainer: MappingTrainer) -> Tensor:
    """The numbers that the trainer's model has now."""
    assert isinstance(trainer.model, MappingModel)
    return trainer.model.latent_vector()


class Follows(Callback):
    """Averages by hand, and notes what validation and the next step see."""

    def __init__(self, decay: float) -> None:
        self.decay = decay
        self.average = torch.zeros(0)
        self.trained = torch.zeros(0)
        self.validated: list[bool] = []

    def on_batch_end(self, trainer: MappingTrainer, record: Any) -> None:
        self.trained = latent_of(trainer).clone()
        if not self.average.numel():
            self.average = self.trained.clone()
        else:
            self.average = torch.lerp(self.average, self.trained, 1 - self.decay)

    def on_validation_start(self, trainer: MappingTrainer) -> None:
        self.validated.append(torch.equal(latent_of(trainer), self.average))

    def on_validation_end(self, trainer: MappingTrainer, metrics: dict[str, float]) -> None:
        assert torch.equal(latent_of(trainer), self.trained)


def test_validation_and_the_end_see_the_average() -> None:
    """Each validation is of the average, training goes on from its own numbers, and the model ends with the average."""
    follows = Follows(0.8)
    model = MappingModel(targets.mlp(), 16)
    trainer = trainer_of(model, None, targets.loader(10), callbacks=[Ema(decay=0.8), follows])
    history = trainer.fit()
    assert follows.validated == [True, True]
    assert torch.equal(model.latent_vector(), follows.average)
    assert not torch.equal(follows.average, follows.trained)
    assert trainer.validate()["loss"] == history["val_loss"][-1]


def test_training_is_the_same_without_it() -> None:
    """What trains is not touched by the average: the training losses are those without it."""
    losses = [
        trainer_of(None, None, targets.loader(10), callbacks=callbacks).fit()["train_loss"]
        for callbacks in ([], [Ema(decay=0.5)])
    ]
    assert losses[0] == losses[1]


def test_it_follows_optimiser_steps() -> None:
    """With accumulation the average moves once an optimiser step."""
    trainer = trainer_of(callbacks=[Ema(decay=0.5)], accumulate=2)
    trainer.fit()
    (ema,) = trainer.callbacks
    assert ema.state_dict()["steps"] == trainer.step == 4


def test_it_copies_only_what_trains() -> None:
    """Of a module with a frozen part the average holds the rest."""
    made = Ema().build(CallbackContext(run_dir=None))
    made.on_fit_start(trainer_of(targets.partly_frozen()))
    assert [tuple(each.shape) for each in made.state_dict()["averages"]] == [(3, 8), (3,)]


@pytest.mark.parametrize("stop", [2, 3, 5])
def test_a_resumed_run_has_the_same_average(stop: int, tmp_path: Path) -> None:
    """Stopped in an epoch, at its end, in a later one: average, trained numbers, validation are the same bits."""

    class Stops(Callback):
        def on_batch_end(self, trainer: MappingTrainer, record: Any) -> None:
            if record.step == stop:
                trainer.stop("stopped")

    def run(*more: Callback, folder: Path | None = tmp_path, resume: str | None = None) -> tuple[Any, ...]:
        model = MappingModel(targets.mlp(), 16)
        trainer = trainer_of(
            model, targets.loader(shuffle=True), targets.loader(10), callbacks=[Ema(decay=0.7), *more], run_dir=folder
        )
        history = trainer.fit(resume=resume)
        (ema,) = (each for each in trainer.callbacks if isinstance(each, EmaCallback))
        return model.latent_vector().tolist(), history["val_loss"], history["train_loss"], ema.state_dict()["steps"]

    whole = run(folder=None)
    run(Stops())
    assert run(resume="last") == whole


@pytest.mark.parametrize("mapped", [True, False])
def test_a_checkpoint_has_both(mapped: bool, tmp_path: Path) -> None:
    """A checkpoint's model is the trained one, `averaged.safetensors` beside it the validated one, as files to load."""
    target = targets.mlp()
    model: nn.Module = MappingModel(target, 16) if mapped else targets.mlp()
    trainer_of(model, None, targets.loader(10), callbacks=[Ema(decay=0.9)], run_dir=tmp_path).fit()
    folder = tmp_path / "checkpoints" / "step-00000006"
    averaged, trained = folder / "averaged.safetensors", folder / "model.safetensors"
    if mapped:
        assert isinstance(model, MappingModel)
        assert torch.equal(MappingModel.load(averaged, target).latent_vector(), model.latent_vector())
        assert not torch.equal(MappingModel.load(trained, target).latent_vector(), model.latent_vector())
    else:
        twin = targets.mlp(seed=1)
        safetensors.torch.load_model(twin, averaged)
        assert all(torch.equal(a, b) for a, b in zip(twin.parameters(), model.parameters(), strict=True))


def test_a_failing_validation_gives_the_trained_numbers_back() -> None:
    """An error while the model has the average leaves it with what was trained."""

    class Fails(Callback):
        trained = torch.zeros(0)

        def on_batch_end(self, trainer: MappingTrainer, record: Any) -> None:
            self.trained = latent_of(trainer).clone()

        def on_validation_start(self, trainer: MappingTrainer) -> None:
            assert not torch.equal(latent_of(trainer), self.trained)
            raise RuntimeError("no")

    model, fails = MappingModel(targets.mlp(), 16), Fails()
    with pytest.raises(CallbackError, match="callback Fails failed in on_validation_start: RuntimeError: no"):
        trainer_of(model, None, targets.loader(10), callbacks=[Ema(), fails]).fit()
    assert torch.equal(model.latent_vector(), fails.trained)


def test_decay_is_a_share() -> None:
    """A decay that would average nothing, or for ever, is refused with its path."""
    with pytest.raises(ConfigError, match=r"callbacks\[0\].decay: must be < 1.0: 1.0"):
        trainer_of(callbacks=[{"type": "ema", "decay": 1.0}])
