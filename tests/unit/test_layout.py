"""The layout: which parameters there are, and what becomes of each."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from mapping_core import Layout, ParameterSpec, TargetError
from mapping_core.target.layout import CONSTANT_SCALE
from tests import targets


def by_name(module: nn.Module) -> dict[str, ParameterSpec]:
    """Return the layout's specs by parameter name."""
    return {spec.name: spec for spec in Layout.of(module).parameters}


def test_names_shapes_dtypes_in_order() -> None:
    """Parameters stand in the order of named_parameters, with shape, dtype, size and owner."""
    module = targets.mixed_dtypes()
    specs = Layout.of(module).parameters
    assert [(spec.name, spec.shape, spec.dtype) for spec in specs] == [
        (name, tuple(parameter.shape), parameter.dtype) for name, parameter in module.named_parameters()
    ]
    assert [spec.numel for spec in specs] == [48, 8, 24, 3]
    assert [spec.module for spec in specs] == ["0", "0", "3", "3"]


def test_a_tied_parameter_is_one() -> None:
    """A weight with two names is listed once, under its first, with the other as alias."""
    specs = by_name(targets.Tied())
    assert specs["embedding.weight"].aliases == ("output.weight",)
    assert "output.weight" not in specs
    assert [spec.aliases for name, spec in specs.items() if name != "embedding.weight"] == [(), ()]


def test_a_shared_module_is_one() -> None:
    """A module in two places gives each of its parameters an alias."""
    shared = nn.Linear(2, 2)
    specs = by_name(nn.Sequential(shared, nn.ReLU(), shared))
    assert {name: spec.aliases for name, spec in specs.items()} == {
        "0.weight": ("2.weight",),
        "0.bias": ("2.bias",),
    }


def test_what_is_mapped() -> None:
    """Mapped is what is floating, not empty and asks for a gradient; everything else is listed and kept."""
    module = targets.partly_frozen()
    module.register_parameter("counts", nn.Parameter(torch.ones(2, dtype=torch.int64), requires_grad=False))
    module.register_parameter("nothing", nn.Parameter(torch.empty(0, 4)))
    module.register_parameter("waves", nn.Parameter(torch.ones(2, dtype=torch.complex64)))
    layout = Layout.of(module)
    assert [spec.name for spec in layout.mapped] == ["2.weight", "2.bias"]
    assert {"0.weight", "0.bias", "counts", "nothing", "waves"} < {spec.name for spec in layout.parameters}


def test_layers_group_by_owner() -> None:
    """A layer is a module with its own mapped parameters; frozen ones are in none."""
    assert {
        name: [spec.name for spec in specs] for name, specs in Layout.of(targets.partly_frozen()).layers().items()
    } == {"2": ["2.weight", "2.bias"]}
    assert list(Layout.of(targets.LookAlikeNames()).layers()) == ["", "a"]


@pytest.mark.parametrize(
    ("module", "name", "fan_in"),
    [
        (nn.Linear(12, 5), "weight", 12),
        (nn.Linear(12, 5), "bias", 12),
        (nn.Conv2d(4, 6, 3), "weight", 36),
        (nn.Conv2d(4, 6, 3), "bias", 36),
        (nn.Conv2d(4, 6, 3, groups=2), "weight", 18),
        (nn.ConvTranspose1d(4, 6, 5), "weight", 30),
        (nn.LSTM(4, 9), "weight_ih_l0", 9),
        (nn.LSTM(4, 9), "bias_hh_l0", 9),
        (nn.GRUCell(4, 9), "weight_hh", 9),
    ],
)
def test_scale_is_the_spread_of_the_initialisation(module: nn.Module, name: str, fan_in: int) -> None:
    """The scale is the standard deviation 1/sqrt(3 fan_in) that torch's own initialisation draws."""
    spec = by_name(module)[name]
    assert spec.fan_in == fan_in
    assert spec.scale == pytest.approx(1 / math.sqrt(3 * fan_in))


def test_scale_agrees_with_torch() -> None:
    """Measured on large layers, torch's initialisation has the spread the layout states."""
    torch.manual_seed(0)
    for module in (nn.Linear(50, 400), nn.Conv2d(8, 64, 3), nn.LSTM(20, 60), nn.Embedding(100, 100)):
        specs = by_name(module)
        for name, parameter in module.named_parameters():
            if parameter.ndim > 1:
                assert parameter.std().item() == pytest.approx(specs[name].scale, rel=0.05)


@pytest.mark.parametrize(
    ("module", "name"),
    [
        (nn.BatchNorm1d(4), "weight"),
        (nn.LayerNorm((2, 4)), "weight"),
        (nn.GroupNorm(2, 4), "bias"),
        (nn.RMSNorm(4), "weight"),
        (nn.PReLU(), "weight"),
        (targets.Scalars(), "logit_scale"),
        (targets.LookAlikeNames(), "a_b"),
    ],
)
def test_constants_have_no_fan_in(module: nn.Module, name: str) -> None:
    """Norm gains, slopes and scales start as constants: no fan-in, and the fixed scale."""
    spec = by_name(module)[name]
    assert (spec.fan_in, spec.scale) == (None, CONSTANT_SCALE)


@pytest.mark.parametrize("module", [nn.MultiheadAttention(8, 2), nn.MultiheadAttention(8, 2, kdim=4, vdim=4)])
def test_attention(module: nn.MultiheadAttention) -> None:
    """Packed and unpacked attention projections have the fan-in of their input."""
    specs = by_name(module)
    expected = {name: p.shape[1] for name, p in module.named_parameters() if p.ndim == 2}
    assert {name: specs[name].fan_in for name in expected} == expected
    if "in_proj_weight" in specs:
        assert specs["in_proj_bias"].fan_in == 8


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (nn.ReLU(), "ReLU has no parameter to map"),
        (nn.Linear(2, 2).requires_grad_(False), "requires_grad=True"),
        (nn.LazyLinear(3), "'weight' is lazy .* run one batch"),
        (nn.Linear(2, 2, device="meta"), "'weight' is on the meta device"),
    ],
)
def test_nothing_to_map(module: nn.Module, message: str) -> None:
    """A target without values or without parameters is refused with the reason."""
    with pytest.raises(TargetError, match=message):
        Layout.of(module)


def test_zero_size_layers_are_skipped() -> None:
    """A layer without elements does not stop the rest from being mapped."""
    with pytest.warns(UserWarning, match="zero-element"):
        module = nn.Sequential(nn.Linear(0, 3), nn.Linear(3, 2))
    assert [spec.name for spec in Layout.of(module).mapped] == ["0.bias", "1.weight", "1.bias"]


def test_fingerprint() -> None:
    """Equal for one architecture whatever the values; different for names, shapes, dtypes, ties and roles."""
    own = Layout.of(targets.mlp()).fingerprint()
    assert Layout.of(targets.mlp(seed=1)).fingerprint() == own
    untied = targets.Tied()
    untied.output.weight = nn.Parameter(untied.output.weight.clone())
    others = [
        nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 3)),
        nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 3)),
        targets.mlp().double(),
        targets.partly_frozen(),
        targets.Tied(),
        untied,
    ]
    assert len({own, *(Layout.of(other).fingerprint() for other in others)}) == 7


def test_reading_computes_nothing() -> None:
    """A parametrized weight is not computed to be measured: spectral_norm's would write to the user's buffers."""
    module = nn.utils.parametrizations.spectral_norm(nn.Linear(4, 3))
    estimate = module.get_buffer("parametrizations.weight.0._u")
    before, version = estimate.clone(), estimate._version
    layout = Layout.of(module)
    assert (estimate._version, torch.equal(estimate, before)) == (version, True)
    assert {spec.name: spec.fan_in for spec in layout.mapped} == {"bias": 4, "parametrizations.weight.original": 4}
    normed = Layout.of(nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)))
    assert [spec.fan_in for spec in normed.mapped] == [4, None, 4]
