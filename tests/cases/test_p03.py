"""P3: a compact file. Source: mapping packages whose checkpoint of 2,048 numbers holds the whole network."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from mapping_core import MappingModel
from mapping_core.reference.models import CNN2
from tests import targets

PROGRAM = """
import sys, hashlib, torch
from mapping_core import MappingModel
from mapping_core.reference.models import CNN2
for path, seed in zip(sys.argv[1:], (0, 1)):
    torch.manual_seed(seed)
    model = MappingModel.load(path, CNN2()).eval()
    x = torch.randn(3, 1, 28, 28, generator=torch.Generator().manual_seed(7))
    print(hashlib.sha256(model(x).detach().numpy().tobytes()).hexdigest())
"""


@pytest.mark.parametrize("strategy", ["slvt", "layerwise"])
@pytest.mark.parametrize("base", ["current", "seeded", "zero"])
def test_size(strategy: str, base: str, tmp_path: Path) -> None:
    """CNN2 through 2,048 numbers is a file of less than 16 KB: the numbers and at most 8 KB beside."""
    model = targets.moved(MappingModel(CNN2(), 2048, strategy, base=base))
    model.save(tmp_path / "m")
    assert (tmp_path / "m").stat().st_size < 16 * 1024
    assert (tmp_path / "m").stat().st_size <= 4 * 2048 + 8 * 1024


def test_in_a_fresh_process(tmp_path: Path) -> None:
    """Another process gives the same bits; with a seeded base even from a network with other weights."""
    x = torch.randn(3, 1, 28, 28, generator=torch.Generator().manual_seed(7))
    expected = []
    for base in ("current", "seeded"):
        torch.manual_seed(0)
        model = targets.moved(MappingModel(CNN2(), 2048, base=base)).eval()
        model.save(tmp_path / base)
        expected.append(hashlib.sha256(model(x).detach().numpy().tobytes()).hexdigest())
    paths = [str(tmp_path / base) for base in ("current", "seeded")]
    found = subprocess.run([sys.executable, "-c", PROGRAM, *paths], check=True, capture_output=True, text=True)
    assert found.stdout.split() == expected


def test_a_view_does_not_bring_its_storage(tmp_path: Path) -> None:
    """A latent that is a slice of something large is saved as what it is."""
    model = MappingModel(CNN2(), 2048)
    model.latent.data = torch.zeros(10**6)[:2048]
    model.save(tmp_path / "m")
    assert (tmp_path / "m").stat().st_size < 16 * 1024
