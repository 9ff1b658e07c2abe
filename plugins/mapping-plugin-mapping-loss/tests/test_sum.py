"""`mapping`: the weighted sum, with core and no other plugin."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from attrs import define
from torch import Tensor, nn

import mapping_core.builtin
import mapping_plugin_mapping_loss
from mapping_core import (
    ConfigError,
    Generator,
    GeneratorConfig,
    Loss,
    LossConfig,
    MappingModel,
    MappingTrainer,
    Registry,
)
from mapping_core.builtin.losses import Auto, CrossEntropy, Mse
from mapping_core.contexts import GeneratorContext, LossContext
from mapping_core.interfaces.loss import LossStep
from mapping_core.training.batches import Batch
from mapping_core.training.steps import forward_step
from mapping_plugin_mapping_loss import Alignment, MappingLoss, Smoothness, Stability

REGISTRY = Registry.of(mapping_core.builtin, mapping_plugin_mapping_loss)


@define(frozen=True, kw_only=True)
class One(GeneratorConfig):
    """One latent for all."""

    name = "one"

    def build(self, context: GeneratorContext) -> Generator:
        return context.inner(None, layout=context.layout, latent_dim=context.latent_dim)


def mapped(*extra: nn.Module) -> MappingModel:
    """Return a small mapped network, [N, 6] -> [N, 3]."""
    torch.manual_seed(0)
    target = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), *extra, nn.Linear(8, 3))
    model = MappingModel(target, 12, One())
    with torch.no_grad():
        model.latent.normal_(generator=torch.Generator().manual_seed(1))
    return model


def data() -> tuple[Tensor, Tensor]:
    """Return inputs and classes that can be learned."""
    x = torch.randn(24, 6, generator=torch.Generator().manual_seed(2))
    return x, (x[:, 0] > 0).long() + (x[:, 1] > 0.5).long()


def step_of(model: MappingModel) -> LossStep:
    """Run a batch as the trainer does."""
    x, y = data()
    return forward_step(model, model, Batch((x,), {}, y))


def build(config: object, model: nn.Module) -> Any:
    """Build a loss for a model, with names in it resolved."""
    return REGISTRY.resolve(LossConfig, config).build(LossContext(model=model))


def test_spellings() -> None:
    """Objects, names and tables, inside as well, are one component."""
    wanted = MappingLoss(task=CrossEntropy(), terms=(Stability(), Smoothness(of="mapping", every=2)))
    smoothness = {"type": "smoothness", "of": "mapping", "every": 2}
    table = {"type": "mapping", "task": "cross_entropy", "terms": ["stability", smoothness]}
    for given in (wanted, table, MappingLoss(task="cross_entropy", terms=["stability", wanted.terms[1]])):
        assert REGISTRY.resolve(LossConfig, given) == wanted
    assert REGISTRY.resolve(LossConfig, "mapping") == MappingLoss(task=Auto())
    assert MappingLoss(terms="stability").terms == ("stability",)


def test_the_sum_of_its_parts() -> None:
    """With fixed weights it is the task plus weight times value, and metrics report each."""
    model = mapped()
    step = step_of(model)
    loss = build(MappingLoss(terms=[Stability(weight=0.5), Smoothness(weight=0.25)]), model)
    total = loss(step)
    metrics = loss.metrics(step)
    assert metrics.keys() == {"accuracy", "task_loss", "stability", "smoothness"}
    torch.testing.assert_close(metrics["task_loss"], loss.task(step).detach())
    parts = metrics["task_loss"] + 0.5 * metrics["stability"] + 0.25 * metrics["smoothness"]
    torch.testing.assert_close(total.detach(), parts)
    assert loss.items(step) == 24


def test_validation_is_the_task_s() -> None:
    """Without a gradient it is the task loss alone, and so are its metrics."""
    model = mapped()
    for learned in (False, True):
        loss = build(MappingLoss(learned=learned), model)
        loss(step_of(model))
        with torch.no_grad():
            step = step_of(model)
            assert torch.equal(loss(step), loss.task(step))
            assert loss.metrics(step).keys() == {"accuracy"}


def test_every() -> None:
    """A term of every third step is evaluated then and counts three times; in the others it costs nothing."""
    model = mapped()
    step = step_of(model)
    loss = build(MappingLoss(terms=[Smoothness(weight=0.5, every=3, samples=50)]), model)
    calls: list[int] = []
    model.skeleton.register_forward_hook(lambda *_: calls.append(1))
    totals = []
    for _ in range(7):
        totals.append((loss(step) - loss.task(step)).detach())
        calls.append(0)
    assert calls == [1, 0, 0, 0, 1, 0, 0, 0, 1, 0]
    assert [bool(total > 1e-4) for total in totals] == [True, False, False, True, False, False, True]
    assert float(totals[6]) == pytest.approx(3 * 0.5 * float(loss.metrics(step)["smoothness"]), rel=1e-3)


@pytest.mark.parametrize(
    ("terms", "passes"),
    [
        ((Stability(), Smoothness(), Alignment()), 4),
        ((Stability(), Stability(noise=0.2)), 3),
        ((Smoothness(of="mapping"),), 0),
        ((Stability(every=2), Alignment(every=3)), 1 / 2 + 2 / 3 + 4 / 6),
    ],
)
def test_forward_passes(terms: tuple[LossConfig, ...], passes: float) -> None:
    """What a step costs on average is what the target is run, the shared pass counted once."""
    model = mapped()
    step = step_of(model)
    loss = build(MappingLoss(terms=terms), model)
    calls: list[int] = []
    model.skeleton.register_forward_hook(lambda *_: calls.append(1))
    for _ in range(12):
        loss(step)
    assert loss.forward_passes == pytest.approx(passes)
    assert len(calls) / 12 == pytest.approx(passes)


def test_two_of_a_kind_are_told_apart() -> None:
    """A second term of one kind is reported under a number."""
    model = mapped()
    step = step_of(model)
    loss = build(MappingLoss(terms=[Stability(), Stability(noise=1.0)], learned=True), model)
    loss(step)
    names = {"stability", "stability_weight", "stability_2", "stability_2_weight"}
    assert names < loss.metrics(step).keys()
    assert loss.metrics(step)["stability_2"] > loss.metrics(step)["stability"]


def test_a_constant_term_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    """A smoothness that is a constant takes no part, in the sum, its metrics or its learned weights."""
    model = mapped()
    with caplog.at_level(logging.WARNING, logger="mapping_core"):
        loss = build(MappingLoss(terms=[Smoothness(of="mapping"), Stability()], learned=True), model)
    step = step_of(model)
    loss(step).backward()
    assert loss.metrics(step).keys() == {"accuracy", "task_loss", "stability", "stability_weight"}
    assert loss.log_scales.grad[1] == 0.0
    assert "smoothness is left out" in caplog.text


def train(model: MappingModel, loss: Loss, steps: int, *, rate: float = 0.05) -> list[float]:
    """Train model and coefficients in a plain loop."""
    optimizer = torch.optim.AdamW([*model.parameters(), *loss.parameters()], lr=rate, weight_decay=0.0)
    values = []
    for _ in range(steps):
        optimizer.zero_grad()
        value = loss(step_of(model))
        value.backward()
        optimizer.step()
        values.append(float(value.detach()))
    return values


def test_learned_weights_settle() -> None:
    """Learned coefficients go where theory puts them, 1 / (loss + floor), and neither vanish nor explode."""
    model = mapped(nn.Dropout(0.1))
    loss = build(MappingLoss(learned=True), model)
    train(model, loss, 400)
    learned = (-loss.log_scales.detach()).exp()
    assert bool(((learned > 0.05) & (learned < 1100)).all())
    metrics = loss.metrics(step_of(model))
    assert float(learned[0] * (metrics["task_loss"] + 1e-3)) == pytest.approx(1.0, rel=0.7)


def test_a_plain_learned_weight_would_vanish() -> None:
    """What the penalty is for: the same weights without it sink in as many steps."""
    model = mapped()
    loss = build(MappingLoss(terms=[Smoothness()]), model)
    weight = nn.Parameter(torch.tensor(0.1))
    optimizer = torch.optim.Adam([model.latent, weight], lr=0.001)
    for _ in range(400):
        optimizer.zero_grad()
        step = step_of(model)
        (loss.task(step) + weight.clamp(min=0) * loss.terms[0](step)).backward()
        optimizer.step()
    assert float(weight.detach()) < 0.01


def test_state_round_trip() -> None:
    """Learned coefficients and the place in the cycle of `every` survive `state_dict`, as tensors."""
    model = mapped()
    config = MappingLoss(terms=[Smoothness(every=3)], learned=True)
    loss = build(config, model)
    train(model, loss, 4)
    state = loss.state_dict()
    assert all(isinstance(value, Tensor) for value in state.values())
    again = build(config, model)
    again.load_state_dict(state)
    assert torch.equal(again.log_scales, loss.log_scales)
    step = step_of(model)
    due = []
    for _ in range(4):
        each = []
        for one in (loss, again):
            torch.manual_seed(5)
            each.append(one(step).detach())
        assert torch.equal(*each)
        due.append(float(each[0]))
    assert due[0] == due[1] != due[2]  # calls 5 and 6 of the run are plain, the 7th has the term


def test_through_the_trainer() -> None:
    """It trains, under dropout and with validation, and the history has its parts."""
    x, y = data()
    batches = list(zip(torch.split(x, 8), torch.split(y, 8), strict=True))
    model = mapped(nn.Dropout(0.1))
    trainer = MappingTrainer(
        model, batches, batches, loss=MappingLoss(), max_epochs=6, progress=False, seed=0, registry=REGISTRY
    )
    history = trainer.fit()
    assert history["train_task_loss"][-1] < history["train_task_loss"][0]
    assert len(history["train_alignment"]) == 6
    assert "alignment" not in history.epochs[0].validation


def test_regression_and_nested_outputs() -> None:
    """Floating targets, and outputs in a tuple of dictionaries, go through all terms."""

    class Nested(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Any:
            return ({"logits": self.layer(x), "hidden": x}, None)

    model = MappingModel(Nested(), 9, One())
    x, _ = data()
    step = forward_step(model, model, Batch((x,), {}, torch.zeros(24, 3)))
    loss = build(MappingLoss(task=Mse()), model)
    loss(step).backward()
    assert loss.items(step) == 24
    assert model.latent.grad is not None
    assert torch.isfinite(model.latent.grad).all()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (MappingLoss(terms=[CrossEntropy()]), "loss.terms: loss 'cross_entropy' cannot be a term"),
        (MappingLoss(task=Stability()), "loss.task: the task of loss 'mapping' cannot be 'stability'"),
        (MappingLoss(task=MappingLoss()), "loss.task: the task of loss 'mapping' cannot be 'mapping'"),
        ({"type": "mapping", "terms": ["stabilty"]}, "did you mean 'stability'"),
    ],
)
def test_bad_settings(config: object, message: str) -> None:
    """What cannot be a term or a task is refused by name when the loss is built."""
    with pytest.raises(ConfigError, match=message):
        build(config, mapped())


def test_needs_latents_and_resolved_names() -> None:
    """A model without latents is refused, and so is a name that no registry has looked up."""
    with pytest.raises(ConfigError, match=r"loss 'mapping'.*Linear has none"):
        build(MappingLoss(), nn.Linear(2, 2))
    with pytest.raises(ConfigError, match="'auto' is a name still"):
        MappingLoss().build(LossContext(model=mapped()))
    with pytest.raises(ValueError, match="terms"):
        MappingLoss(terms=())
