"""The layout: which parameters there are, and what becomes of each."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from mapping_core import Layout, ParameterSpec, TargetError
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
    Layout.of(module)
    assert (estimate._version, torch.equal(estimate, before)) == (version, True)


def test_scale_fingerprint() -> None:
    """The hash of the scales is that of the mapped parameters' initialisation, whatever their values."""
    own = Layout.of(targets.mlp()).scale_fingerprint()
    assert Layout.of(targets.mlp(seed=1)).scale_fingerprint() == own
    wider = nn.Sequential(nn.Linear(7, 8), nn.ReLU(), nn.Linear(8, 3))
    assert Layout.of(wider).scale_fingerprint() != own
