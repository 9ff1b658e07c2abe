"""Row scales: the spread that a layer's own initialisation gives its weights."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from attrs import define
from torch import Tensor, nn
from torch.nn.modules.lazy import LazyModuleMixin

from mapping_core import Layout, MappingModel, ParameterSpec
from mapping_core.target.layout import CONSTANT_SCALE
from tests import targets

DRAWS, TOLERANCE = 60, 0.04

#: Every layer of torch that has parameters of its own, in shapes whose fan-ins differ.
LAYERS: list[Callable[[], nn.Module]] = [
    lambda: nn.Linear(12, 50),
    lambda: nn.modules.linear.NonDynamicallyQuantizableLinear(12, 50),
    lambda: nn.Bilinear(7, 11, 50),
    lambda: nn.Conv1d(4, 60, 3),
    lambda: nn.Conv2d(8, 60, 3, groups=2),
    lambda: nn.Conv3d(4, 60, (1, 2, 3)),
    lambda: nn.ConvTranspose1d(60, 40, 5),
    lambda: nn.ConvTranspose2d(60, 40, 3, groups=2),
    lambda: nn.ConvTranspose3d(40, 40, (1, 2, 3)),
    lambda: nn.Embedding(60, 20),
    lambda: nn.EmbeddingBag(60, 20),
    lambda: nn.RNN(5, 40, 2),
    lambda: nn.LSTM(5, 40, bidirectional=True, proj_size=9),
    lambda: nn.GRU(5, 40),
    lambda: nn.RNNCell(5, 40),
    lambda: nn.LSTMCell(5, 40),
    lambda: nn.GRUCell(5, 40),
    lambda: nn.MultiheadAttention(60, 2, add_bias_kv=True),
    lambda: nn.MultiheadAttention(60, 2, kdim=10, vdim=30),
    lambda: nn.BatchNorm1d(9),
    lambda: nn.BatchNorm2d(9),
    lambda: nn.BatchNorm3d(9),
    lambda: nn.SyncBatchNorm(9),
    lambda: nn.InstanceNorm1d(9, affine=True),
    lambda: nn.InstanceNorm2d(9, affine=True),
    lambda: nn.InstanceNorm3d(9, affine=True),
    lambda: nn.LayerNorm((3, 4)),
    lambda: nn.GroupNorm(3, 9),
    lambda: nn.RMSNorm(9),
    lambda: nn.PReLU(9),
    lambda: nn.Transformer(24, 2, 1, 1, 60),
]
#: What these are made of stands above.
MADE_OF_THEM = {nn.AdaptiveLogSoftmaxWithLoss, nn.RNNBase, nn.RNNCellBase}


def by_name(module: nn.Module) -> dict[str, ParameterSpec]:
    """Return the layout's specs by parameter name."""
    return {spec.name: spec for spec in Layout.of(module).parameters}


@pytest.mark.parametrize("make", LAYERS, ids=lambda make: type(make()).__name__)
def test_scales_are_those_of_repeated_initialisation(make: Callable[[], nn.Module]) -> None:
    """Made many times, a layer's parameters have the spread stated, or are constants where that is said.

    A bias that always starts at 0 beside a weight that does not has the weight's spread instead.
    """
    torch.manual_seed(0)
    specs = by_name(make())
    draws: dict[str, list[Tensor]] = {name: [] for name in specs}
    for _ in range(DRAWS):
        for name, parameter in make().named_parameters():
            draws[name].append(parameter.detach().flatten())
    for name, spec in specs.items():
        drawn = torch.stack(draws[name])
        if spec.starts_constant:
            assert (drawn == drawn[0, 0]).all(), name
            assert spec.scale == CONSTANT_SCALE
        elif drawn.any():
            few = 2 / drawn.numel() ** 0.5
            assert drawn.square().mean().sqrt().item() == pytest.approx(spec.scale, rel=TOLERANCE + few), name
        else:
            weight = {"in_proj_bias": "in_proj_weight"}.get(name.rpartition(".")[2], "weight")
            kept = f"{name.rpartition('.')[0]}.{weight}".removeprefix(".")
            expected = specs[kept].scale if kept in specs else specs["q_proj_weight"].scale
            assert name.endswith("bias"), name
            assert spec.scale in (expected, 1 / math.sqrt(3 * 24)), name


def test_no_layer_of_torch_is_forgotten() -> None:
    """Every class of torch.nn that initialises parameters is in the list above."""
    own = {
        kind
        for kind in vars(nn).values()
        if isinstance(kind, type)
        and issubclass(kind, nn.Module)
        and not issubclass(kind, LazyModuleMixin)
        and ("reset_parameters" in dir(kind) or "_reset_parameters" in dir(kind))
    }
    assert own - MADE_OF_THEM <= {type(make()) for make in LAYERS}


@pytest.mark.parametrize(
    ("module", "name", "scale"),
    [
        (nn.ConvTranspose1d(4, 6, 5), "bias", 1 / math.sqrt(3 * 30)),
        (nn.Bilinear(5, 9, 2), "bias", 1 / math.sqrt(3 * 5)),
        (nn.MultiheadAttention(8, 2), "in_proj_weight", math.sqrt(2 / (8 + 24))),
        (nn.MultiheadAttention(8, 2), "in_proj_bias", math.sqrt(2 / (8 + 24))),
        (nn.MultiheadAttention(8, 2), "out_proj.bias", 1 / math.sqrt(3 * 8)),
        (nn.MultiheadAttention(8, 2, kdim=4, vdim=4), "in_proj_bias", math.sqrt(1 / 8)),
        (nn.MultiheadAttention(8, 2, kdim=4, vdim=4), "k_proj_weight", math.sqrt(2 / 12)),
        (targets.Scalars(), "logit_scale", CONSTANT_SCALE),
        (targets.LookAlikeNames(), "a_b", CONSTANT_SCALE),
    ],
)
def test_single_scales(module: nn.Module, name: str, scale: float) -> None:
    """Scales that no repetition shows: of biases that start at 0, and of parameters of no layer of torch."""
    assert by_name(module)[name].scale == pytest.approx(scale)


def test_reparametrized() -> None:
    """Weights of a parametrization, of weight_norm's and pruning's old kinds too, are spread as the plain ones."""
    plain = 1 / math.sqrt(3 * 4)
    make: dict[str, Callable[[], nn.Module]] = {
        "parametrizations.weight.original": lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(4, 3)),
        "parametrizations.weight.original1": lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)),
        "weight_orig": lambda: nn.utils.spectral_norm(nn.Linear(4, 3)),
        "weight_v": lambda: nn.utils.weight_norm(nn.Linear(4, 3)),
    }
    for name, one in make.items():
        module = one()
        for layer, prefix in ((module, ""), (nn.Sequential(nn.ReLU(), module), "1.")):
            specs = by_name(layer)
            assert {specs[prefix + name].scale, specs[prefix + "bias"].scale} == {plain}
            magnitudes = [spec for spec in specs.values() if spec.name.endswith(("original0", "weight_g"))]
            assert all(spec.starts_constant for spec in magnitudes)
    embedding = nn.utils.parametrizations.orthogonal(nn.Embedding(9, 4))
    assert by_name(embedding)["parametrizations.weight.original"].scale == 1.0


@define
class Config:
    """What a model of transformers declares."""

    initializer_range: object


class Declaring(nn.Module):
    """A model in the manner of transformers' `PreTrainedModel`."""

    def __init__(self, initializer_range: object) -> None:
        super().__init__()
        self.config = Config(initializer_range)
        self.body = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 4), nn.LayerNorm(4))
        self.attention = nn.MultiheadAttention(4, 2)
        self.recurrent = nn.GRU(4, 6)

    def _init_weights(self, module: nn.Module) -> None:
        """Do nothing: that there is such a method is what counts."""


def test_a_declared_range() -> None:
    """A model that declares its range gives it to weights and biases, not to norms, recurrent layers, attention."""
    specs = by_name(nn.Sequential(Declaring(0.02)))
    found = {name.removeprefix("0."): spec.scale for name, spec in specs.items()}
    assert {found[f"body.{name}"] for name in ("0.weight", "1.weight", "1.bias")} == {0.02}
    assert found["body.2.weight"] == CONSTANT_SCALE
    assert found["recurrent.weight_ih_l0"] == pytest.approx(1 / math.sqrt(3 * 6))
    assert found["attention.in_proj_weight"] == pytest.approx(math.sqrt(2 / 16))


@pytest.mark.parametrize("declared", [None, 0.0, "0.02", True])
def test_no_usable_range(declared: object) -> None:
    """Without a positive number the layers' own rules hold; so they do in a module that only has a config."""
    specs = by_name(Declaring(declared))
    assert specs["body.0.weight"].scale == 1.0
    assert specs["body.1.weight"].scale == pytest.approx(1 / math.sqrt(3 * 4))
    plain = nn.Sequential(nn.Embedding(9, 4))
    plain.__dict__["config"] = Config(0.02)
    assert by_name(plain)["0.weight"].scale == 1.0


def test_a_model_with_attention_starts_as_its_target() -> None:
    """Scales change nothing at the start, and a latent of size 1 moves weights by the spread."""
    target = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    model = MappingModel(target, 64, "slvt")
    x = torch.randn(2, 5, 8)
    torch.testing.assert_close(model(x), target(x))
    with torch.no_grad():
        model.latent.normal_()
    moved = model.generate_weights()["self_attn.in_proj_weight"] - target.self_attn.in_proj_weight
    assert moved.std().item() == pytest.approx(math.sqrt(2 / 32), rel=0.3)
