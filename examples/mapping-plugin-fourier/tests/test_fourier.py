"""What mapping-core promises of every mapper, of `fourier`, and what this one promises beyond."""

from __future__ import annotations

import torch
from mapping_core.contexts import MapperContext
from mapping_core.testing import MapperSuite

from mapping_plugin_fourier import Fourier


class TestFourier(MapperSuite):
    """Every check, on each configuration."""

    component = Fourier
    configs = (Fourier(), Fourier(terms=1), Fourier(terms=9))


def test_it_is_bounded() -> None:
    """However large the latent, a weight moves no further than all its sines together."""
    mapper = Fourier(terms=2).build(MapperContext(in_features=10, out_features=300, seed=0))
    assert float(mapper(1e4 * torch.randn(10)).abs().max()) <= 2 / 5**0.5


def test_one_term_is_a_sine() -> None:
    """With one term each weight is plus or minus the sine of one number."""
    mapper = Fourier(terms=1).build(MapperContext(in_features=3, out_features=50, seed=0))
    z = torch.tensor([0.1, 0.5, 1.2])
    sines = set(z.sin().tolist())
    assert {round(value, 5) for value in mapper(z).abs().tolist()} == {round(value, 5) for value in sines}
