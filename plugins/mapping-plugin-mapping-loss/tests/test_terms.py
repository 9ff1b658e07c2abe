"""`stability`, `smoothness` and `alignment`, with core and no other plugin."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from attrs import define
from torch import Tensor, nn

import mapping_core
import mapping_core.builtin
import mapping_plugin_mapping_loss
from mapping_core import (
    ConfigError,
    Generator,
    GeneratorConfig,
    Loss,
    LossConfig,
    LossError,
    Mapper,
    MapperConfig,
    MappingModel,
    Registry,
)
from mapping_core.builtin.mappers import Orthogonal
from mapping_core.contexts import GeneratorContext, LossContext, MapperContext
from mapping_core.interfaces.loss import LossStep
from mapping_core.training.batches import Batch
from mapping_core.training.steps import forward_step
from mapping_plugin_mapping_loss import Alignment, Smoothness, Stability

TERMS: list[LossConfig] = [
    Stability(),
    Stability(distance="squared"),
    Smoothness(),
    Smoothness(samples=3),
    Smoothness(of="mapping"),
    Alignment(),
]


@define(frozen=True, kw_only=True)
class One(GeneratorConfig):
    """One latent for all."""

    name = "one"

    def build(self, context: GeneratorContext) -> Generator:
        return context.inner(None, layout=context.layout, latent_dim=context.latent_dim)


@define(frozen=True, kw_only=True)
class Tanh(MapperConfig):
    """A mapper that is not linear."""

    name = "tanh"

    def build(self, context: MapperContext) -> Mapper:
        inner = Orthogonal().build(context)

        class TanhMapper(Mapper):
            def forward(self, z: Tensor) -> Tensor:
                return torch.tanh(inner(z))

        return TanhMapper(context.in_features, context.out_features)


def net(*extra: nn.Module) -> nn.Sequential:
    """A small network, [N, 6] -> [N, 3]."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), *extra, nn.Linear(8, 3))


def mapped(target: nn.Module | None = None, d: int = 12, *, mapper: Any = "srht", **options: Any) -> MappingModel:
    """Return a mapped model whose latent is not 0."""
    model = MappingModel(net() if target is None else target, d, One(), mapper=mapper, **options)
    with torch.no_grad():
        model.latent.normal_(generator=torch.Generator().manual_seed(1))
    return model


def step_of(model: MappingModel, x: Tensor | None = None, targets: Any = None) -> LossStep:
    """Run a batch as the trainer does."""
    torch.manual_seed(2)
    x = torch.randn(5, 6) if x is None else x
    targets = torch.arange(len(x)) % 3 if targets is None else targets
    return forward_step(model, model, Batch((x,), {}, targets))


def build(config: LossConfig, model: nn.Module) -> Any:
    """Build a loss for a model."""
    return config.build(LossContext(model=model))


@pytest.fixture(params=TERMS, ids=repr)
def config(request: pytest.FixtureRequest) -> LossConfig:
    """Give each term in turn."""
    made: LossConfig = request.param
    return made


def test_registered() -> None:
    """The plugin adds four losses through its entry point, at core's version."""
    registry = Registry.discover()
    for name in ("mapping", "stability", "smoothness", "alignment"):
        assert registry.losses.get(f"mapping-plugin-mapping-loss:{name}").name == name
    assert mapping_plugin_mapping_loss.__version__ == mapping_core.__version__


def test_a_scalar_with_a_gradient(config: LossConfig) -> None:
    """Each is a finite scalar of at least 0 whose gradient reaches the latent."""
    model = mapped(mapper=Tanh())
    value = build(config, model)(step_of(model))
    value.backward()
    assert value.shape == ()
    assert float(value.detach()) > 0
    assert model.latent.grad is not None
    assert torch.isfinite(model.latent.grad).all()
    assert bool(model.latent.grad.any())


def test_without_a_gradient(config: LossConfig) -> None:
    """In validation the same value comes without a graph."""
    model = mapped(mapper=Tanh())
    loss = build(config, model)
    with torch.no_grad():
        step = step_of(model)
        torch.manual_seed(3)
        value = loss(step)
    assert not value.requires_grad
    step = step_of(model)
    torch.manual_seed(3)
    torch.testing.assert_close(value, loss(step).detach())


def test_needs_latents(config: LossConfig) -> None:
    """For a model without latents each is refused when it is built, not in the first step."""
    with pytest.raises(ConfigError, match=rf"loss: loss '{config.name}'.*Sequential has none: wrap it"):
        build(config, net())


def test_trains_nothing(config: LossConfig) -> None:
    """A term holds no parameter, least of all the model's, and counts samples."""
    model = mapped()
    loss: Loss = build(config, model)
    assert not list(loss.parameters())
    assert loss.items(step_of(model)) == 5


@pytest.mark.parametrize("config", [*TERMS, Smoothness(of="mapping", samples=2)], ids=repr)
def test_forward_passes_are_what_it_says(config: LossConfig) -> None:
    """The target runs as many times more as the loss says."""
    target = net()
    model = mapped(target, mapper=Tanh())
    loss = build(config, model)
    step = step_of(model)
    calls = []
    model.skeleton.register_forward_hook(lambda *_: calls.append(1))
    loss(step)
    assert len(calls) == loss.forward_passes


def test_leaves_no_trace(config: LossConfig) -> None:
    """Running statistics stay as the step's own pass left them."""
    model = mapped(net(nn.BatchNorm1d(8), nn.Dropout(0.5)), mapper=Tanh(), buffers="tracked")
    step = step_of(model)
    before = {name: buffer.clone() for name, buffer in model.state_dict().items()}
    build(config, model)(step).backward()
    after = model.state_dict()
    assert any("running_mean" in name for name in before)
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("config", [Stability(noise=1e-5), Stability(noise=1e-5, distance="squared")], ids=repr)
def test_stability_is_paired(config: LossConfig) -> None:
    """Under dropout, next to no noise gives next to no loss: both passes draw the same masks."""
    model = mapped(net(nn.Dropout(0.5)))
    x = torch.randn(5, 6)
    masks_differ = float((model(x) - model(x)).detach().square().mean())
    assert masks_differ > 1e-2
    assert float(build(config, model)(step_of(model, x)).detach()) < 1e-6


def test_random_state_moves_on_by_one_pass() -> None:
    """Afterwards torch's random state is where one pass and the noise leave it: later steps draw new masks."""
    model = mapped(net(nn.Dropout(0.5)))
    step = step_of(model)
    torch.manual_seed(4)
    build(Stability(), model)(step)
    after = torch.rand(3)
    torch.manual_seed(4)
    step.evaluate(step.latents)
    torch.randn(12)
    assert torch.equal(after, torch.rand(3))


def test_stability_of_a_linear_output() -> None:
    """For outputs linear in z the squared distance is noise^2 times the mean squared row of the Jacobian."""
    model = mapped(nn.Linear(6, 3, bias=False), 9)
    x = torch.randn(5, 6)
    step = step_of(model, x, torch.zeros(5, 3))
    jacobian: Any = torch.func.jacrev(lambda z: model.forward_with(z, x))(model.latent_vector())
    expected = 0.04 * float(jacobian.square().sum()) / 15
    loss = build(Stability(noise=0.2), model)
    found = torch.stack([loss(step).detach() for _ in range(4000)])
    assert float(found.mean()) == pytest.approx(expected, rel=0.05)


def test_stability_between_classes() -> None:
    """With integer targets it is the divergence of class probabilities over dimension 1, maps too."""
    model = mapped(nn.Conv2d(2, 3, 1), 6)
    x, masks = torch.randn(4, 2, 5, 5), torch.zeros(4, 5, 5, dtype=torch.long)
    value = build(Stability(noise=1.0), model)(step_of(model, x, masks)).detach()
    assert 0 < float(value) < 20
    shifted = mapped(nn.Linear(6, 1), 4)  # one class: its probability is 1 whatever its logit
    assert float(build(Stability(), shifted)(step_of(shifted)).detach()) == pytest.approx(0.0, abs=1e-7)


def test_kl_needs_classes() -> None:
    """Outputs without a class dimension are refused, with the way out."""
    model = mapped(nn.Sequential(nn.Linear(6, 1), nn.Flatten(0)), 4)
    with pytest.raises(LossError, match=r"needs logits \[N, C, ...\], got \[5\]: use distance='squared'"):
        build(Stability(distance="kl"), model)(step_of(model))


@pytest.mark.parametrize("of", ["outputs", "mapping"])
def test_smoothness_is_the_jacobian_s_norm(of: str) -> None:
    """The mean of many estimates is the squared Frobenius norm of the exact Jacobian, over its rows."""
    model = mapped(mapper=Tanh())
    x = torch.randn(5, 6)

    def rows(z: Tensor) -> Tensor:
        if of == "outputs":
            outputs: Tensor = model.forward_with(z, x)
            return outputs.flatten()
        return torch.cat([weight.flatten() for weight in model.generate_weights({"z": z}).values()])

    jacobian: Any = torch.func.jacrev(rows)(model.latent_vector())
    expected = float(jacobian.square().sum()) / len(jacobian)
    found = build(Smoothness(of=of, samples=3000), model)(step_of(model, x))
    assert float(found.detach()) == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("mapper", ["srht", Orthogonal()], ids=repr)
def test_smoothness_of_a_linear_mapping_is_left_out(mapper: Any, caplog: pytest.LogCaptureFixture) -> None:
    """For linear mappers of either contract a notice comes once, at the start, and the term is 0."""
    model = mapped(mapper=mapper)
    state = torch.get_rng_state()
    with caplog.at_level(logging.WARNING, logger="mapping_core"):
        loss = build(Smoothness(of="mapping"), model)
        assert torch.equal(state, torch.get_rng_state())
        values = [loss(step_of(model)) for _ in range(2)]
    assert [record.getMessage() for record in caplog.records if "smoothness is left out" in record.getMessage()]
    assert len(caplog.records) == 1
    values[0].backward()  # a loop need not know
    assert float(values[0].detach()) == 0.0


def test_smoothness_of_a_mapping_that_is_not_linear(caplog: pytest.LogCaptureFixture) -> None:
    """A non-linear mapper, and a product of linear ones, are told from linear ones without their help."""

    @define(frozen=True, kw_only=True)
    class Squares(GeneratorConfig):
        name = "squares"

        def build(self, context: GeneratorContext) -> Generator:
            inner = context.inner(None, layout=context.layout, latent_dim=context.latent_dim)

            class SquaresGenerator(Generator):
                @property
                def latent_sizes(self) -> dict[str, int]:
                    return inner.latent_sizes

                def forward(self, latents: Mapping[str, Tensor], base: Mapping[str, Tensor]) -> dict[str, Tensor]:
                    return inner.forward({name: z * z.abs().sum() for name, z in latents.items()}, base)

                def assignment(self) -> dict[str, tuple[str, ...]]:
                    return inner.assignment()

            return SquaresGenerator()

    build(Smoothness(of="mapping"), mapped(mapper=Tanh()))
    build(Smoothness(of="mapping"), MappingModel(net(), 12, Squares()))
    assert not caplog.records


class Weights(nn.Module):
    """Its output is its weight, whatever the input."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.layer = nn.Linear(count, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer.weight.expand(len(x), -1)


def test_alignment_of_an_isometry_is_zero() -> None:
    """Where outputs are the latent turned and scaled, angles are kept; where directions vanish, they are not."""
    isometry = mapped(Weights(12), 12, mapper=Orthogonal())
    loss = build(Alignment(), isometry)
    assert max(float(loss(step_of(isometry)).detach()) for _ in range(5)) < 1e-6
    few = mapped(nn.Linear(6, 1, bias=False), 6)  # five outputs on a line of six directions
    loss = build(Alignment(), few)
    one = torch.ones(5, 6)
    assert sum(float(loss(step_of(few, one)).detach()) for _ in range(5)) > 0.1


def test_alignment_of_a_single_number() -> None:
    """One number has no angle but 0 and 180 degrees: a finite loss, and a finite gradient."""
    model = mapped(d=1)
    value = build(Alignment(), model)(step_of(model))
    value.backward()
    assert model.latent.grad is not None
    assert torch.isfinite(value).all()
    assert torch.isfinite(model.latent.grad).all()


class Attention(nn.Module):
    """A transformer layer, which takes a fused attention where it can."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.TransformerEncoderLayer(6, 2, 8, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.layer(x)[:, 0]
        return outputs


class Recurrent(nn.Module):
    """An LSTM."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.LSTM(6, 5, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.layer(x)[0][:, -1]
        return outputs


@pytest.mark.parametrize("target", [Attention, Recurrent])
def test_targets_of_other_kinds(config: LossConfig, target: type[nn.Module]) -> None:
    """Attention, with dropout, and recurrent layers go through every term, second derivatives too."""
    model = mapped(target(), mapper=Tanh())
    step = step_of(model, torch.randn(5, 4, 6))
    build(config, model)(step).backward()
    assert model.latent.grad is not None
    assert torch.isfinite(model.latent.grad).all()


def test_lazy_and_low_precision(config: LossConfig) -> None:
    """A lazy model, and a bfloat16 one, whose losses are float32."""
    lazy = mapped(lazy=True, mapper=Tanh())
    build(config, lazy)(step_of(lazy)).backward()
    assert lazy.latent.grad is not None
    low = mapped(net().bfloat16(), mapper=Tanh())
    value = build(config, low)(step_of(low, torch.randn(5, 6).bfloat16()))
    value.backward()
    assert value.dtype == torch.float32


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Stability(noise=0.0), "noise"),
        (lambda: Stability(distance="l1"), "distance"),
        (lambda: Smoothness(of="weights"), "of"),
        (lambda: Smoothness(samples=0), "samples"),
        (lambda: Alignment(every=0), "every"),
        (lambda: Alignment(weight=0.0), "weight"),
    ],
)
def test_bad_settings(make: Any, message: str) -> None:
    """A setting out of range is refused when it is made, by name."""
    with pytest.raises(ValueError, match=message):
        make()
