"""The strategy `finetune`, with core and no other plugin."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from attrs import define
from torch import Tensor, nn

from mapping_core import (
    BudgetError,
    ConfigError,
    Generator,
    GeneratorConfig,
    MappingModel,
    MappingTrainer,
    TargetError,
)
from mapping_core.contexts import GeneratorContext
from mapping_core.reference.models import CifarResNet
from mapping_plugin_modulation import Finetune


class Net(nn.Module):
    """Three linear blocks, the second with a norm; [N, 6] -> [N, 3]."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer1 = nn.Linear(6, 8)
        self.layer2 = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8))
        self.head = nn.Linear(8, 3)
        nn.init.normal_(self.layer2[1].bias)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.layer2(self.layer1(x).relu()).relu())
        return logits


@pytest.fixture(params=["gates", "deltas"])
def kind(request: pytest.FixtureRequest) -> str:
    """Give each kind of change."""
    made: str = request.param
    return made


def moved(model: MappingModel) -> MappingModel:
    """Put the latent somewhere."""
    with torch.no_grad():
        model.latent.normal_(generator=torch.Generator().manual_seed(1))
    return model


def test_only_chosen_blocks_change(kind: str) -> None:
    """The budget goes to the chosen blocks; every other parameter keeps its values."""
    target = Net()
    model = moved(MappingModel(target, 10, Finetune(blocks=["layer2.*"], kind=kind)))
    assert {spec.name for spec in model.layout.mapped} == {
        f"layer2.{i}.{p}" for i in (0, 1) for p in ("weight", "bias")
    }
    exported = dict(model.export().named_parameters())
    for name, parameter in target.named_parameters():
        assert torch.equal(parameter, exported[name]) == (not name.startswith("layer2")), name
    assert sum(p.numel() for p in model.parameters()) == 10


def test_starts_as_the_target(kind: str) -> None:
    """Before training the outputs are those of the pretrained network, bit for bit."""
    target, x = Net(), torch.randn(4, 6)
    assert torch.equal(MappingModel(target, 10, Finetune(kind=kind))(x), target(x))


def test_head_trains_directly(kind: str) -> None:
    """A head through ``trained=`` counts in the budget, whether the blocks name it or not."""
    model = MappingModel(Net(), 47, Finetune(kind=kind), trained="head")
    assert model.latent.numel() == 20
    assert sum(p.numel() for p in model.parameters()) == 47


def test_trains(kind: str) -> None:
    """Training through either kind lowers the loss."""
    x = torch.randn(64, 6)
    batches = [(part, (part[:, 0] > 0).long()) for part in torch.split(x, 16)]
    model = MappingModel(Net(), 47, Finetune(blocks="layer*", kind=kind), trained="head")
    history = MappingTrainer(model, batches, max_epochs=8, learning_rate=0.05, progress=False, seed=0).fit()
    assert history["train_loss"][-1] < 0.7 * history["train_loss"][0]


def test_gates_multiply_channels() -> None:
    """A gate multiplies a row of a weight and one number of a vector."""
    model = moved(MappingModel(Net(), 10, Finetune(blocks=["layer2"], kind="gates", strength=0.3)))
    base, weights = model.target.base.as_dict(), model.generate_weights()
    factor = weights["layer2.0.weight"] / base["layer2.0.weight"]
    torch.testing.assert_close(factor, factor[:, :1].expand_as(factor))
    assert 0.05 < float((factor - 1).detach().std()) < 0.6
    assert not torch.equal(weights["layer2.1.weight"], base["layer2.1.weight"])


def test_gates_leave_zeros_alone() -> None:
    """A multiplicative change cannot move a bias that is 0."""
    target = Net()
    nn.init.zeros_(target.layer1.bias)
    assert not moved(MappingModel(target, 10, Finetune())).generate_weights()["layer1.bias"].any()


@pytest.mark.parametrize(("rows"), [None, (0, 3), (3, 8)])
def test_some_rows(kind: str, rows: tuple[int, int] | None) -> None:
    """Some parameters, and some of their rows, are those of the whole."""
    model = moved(MappingModel(Net(), 10, Finetune(kind=kind)))
    whole = model.generate_weights()
    names = frozenset({"layer2.0.weight", "layer2.0.bias"})
    some = model.generator.generate_some(model.latents, model.target.base.as_dict(), names, rows)
    assert some.keys() == names
    for name, weight in some.items():
        torch.testing.assert_close(weight, whole[name] if rows is None else whole[name][slice(*rows)])


def test_scalar_and_padding_row() -> None:
    """A scalar has a gate, and the padding row of an embedding keeps its value, in rows too."""

    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(6, 4, padding_idx=2)
            self.scale = nn.Parameter(torch.tensor(2.0))
            with torch.no_grad():
                self.words.weight[2] = 1.0

        def forward(self, tokens: Tensor) -> Tensor:
            vectors: Tensor = self.words(tokens) * self.scale
            return vectors

    model = moved(MappingModel(Words(), 5, Finetune()))
    weights = model.generate_weights()
    assert torch.equal(weights["words.weight"][2], torch.ones(4))
    assert float(weights["scale"]) != 2.0
    for rows in ((0, 3), (3, 6)):
        names = frozenset({"words.weight"})
        some = model.generator.generate_some(model.latents, model.target.base.as_dict(), names, rows)
        assert torch.equal(some["words.weight"], weights["words.weight"][slice(*rows)])


def test_saves_and_loads(kind: str, tmp_path: Path) -> None:
    """A file brings blocks, kind and outputs back, whole or lazily."""
    target, x = Net(), torch.randn(2, 6)
    strategy = Finetune(blocks=("layer1", "LayerNorm"), kind=kind, strength=0.2)
    model = moved(MappingModel(target, 40, strategy, trained="head.weight"))
    model.save(tmp_path / "model.safetensors")
    for lazy in (False, True):
        loaded = MappingModel.load(tmp_path / "model.safetensors", target, lazy=lazy)
        assert loaded.strategy == strategy
        torch.testing.assert_close(loaded(x), model(x))


def test_pretrained_resnet_fits_its_budget() -> None:
    """2,048 numbers gate the CIFAR ResNet-20 and train its head, which has 650 of them."""
    model = MappingModel(CifarResNet(), 2048, "finetune", trained="linear")
    assert model.latent.numel() == 1398
    generator: Any = model.generator
    assert generator.lines.count == 3 * 688  # output channels, gains and biases of norms


def test_more_numbers_than_gates() -> None:
    """A latent larger than the gates is refused, with both numbers and the ways out."""
    with pytest.raises(BudgetError, match=r"40 numbers are more than the 32 gates.*kind='deltas'"):
        MappingModel(Net(), 40, Finetune(blocks=["layer2"]))


def test_gates_take_no_modulation() -> None:
    """Gates are a modulation already; deltas take one."""
    with pytest.raises(ConfigError, match=r"modulation: strategy 'finetune' of kind 'gates'.*takes no 'gain'"):
        MappingModel(Net(), 10, Finetune(), modulation="gain")
    assert MappingModel(Net(), 10, Finetune(kind="deltas"), modulation="gain").latent_dim == 10


def test_blocks_and_mapped() -> None:
    """``mapped=`` beside blocks is refused, unless it says the same; alone it works."""
    with pytest.raises(ConfigError, match="maps layer2 by itself: leave mapped= out"):
        MappingModel(Net(), 10, Finetune(blocks=["layer2"]), mapped="layer1")
    assert MappingModel(Net(), 10, Finetune(blocks=["layer2"]), mapped=["layer2"]).latent_dim == 10
    model = MappingModel(Net(), 10, Finetune(), mapped="layer1")
    assert {spec.module for spec in model.layout.mapped} == {"layer1"}


def test_inside_another_strategy() -> None:
    """Where the outer strategy makes the layout, blocks have nothing to choose from, and the error says so."""

    @define(frozen=True, kw_only=True)
    class Outer(GeneratorConfig):
        name = "outer"
        strategy: GeneratorConfig | str | None = None

        def build(self, context: GeneratorContext) -> Generator:
            return context.inner(self.strategy, layout=context.layout, latent_dim=context.latent_dim)

    assert MappingModel(Net(), 10, Outer(strategy=Finetune())).latent_dim == 10
    with pytest.raises(ConfigError, match=r"'finetune' inside another one cannot choose.*layer2.*use mapped="):
        MappingModel(Net(), 10, Outer(strategy=Finetune(blocks=["layer2"])))


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: MappingModel(Net(), 10, Finetune(blocks=["layer9"])), TargetError, "mapped='layer9' matches no"),
        (lambda: Finetune(blocks=[nn.Linear]), TypeError, "blocks"),  # type: ignore[list-item]
        (lambda: Finetune(kind="gate"), ValueError, "kind"),
        (lambda: MappingModel(Net(), 10, {"type": "finetune", "kind": "gate"}), ConfigError, "did you mean 'gates'"),
    ],
)
def test_bad_settings(make: Any, error: type[Exception], message: str) -> None:
    """Unknown blocks, patterns that no file can hold, and unknown kinds are refused by name."""
    with pytest.raises(error, match=message):
        make()
