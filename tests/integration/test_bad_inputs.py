"""Bad inputs end in one clear line: in Python as a typed error, on the command line with exit code 2."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from torch import nn

from mapping_core import MappingError, MappingModel, MappingTrainer, Registry, RunConfig
from mapping_core.config import load_toml
from tests import targets


def from_toml(tmp_path: Path, lines: str) -> RunConfig:
    """Read a run configuration with these lines in it."""
    path = tmp_path / "run.toml"
    path.write_text(f'target = "cnn2"\ndata = "mnist"\n{lines}\n', encoding="utf-8")
    return load_toml(path, RunConfig, Registry.discover())


BAD: dict[str, tuple[Callable[[Path], object], tuple[str, ...]]] = {
    "unknown strategy": (
        lambda _: MappingModel(targets.mlp(), 16, strategy="layerwize"),
        ("strategy", "'layerwize'", "installed: ", "did you mean 'layerwise'?"),
    ),
    "strategy of a plugin that is not installed": (
        lambda _: MappingModel(targets.mlp(), 16, "slvt", registry=Registry.discover(block=["mapping-plugin-slvt"])),
        ("'slvt'", "mapping-plugin-slvt", "MAPPING_BLOCK"),
    ),
    "negative latent_dim": (lambda _: MappingModel(targets.mlp(), -5), ("latent_dim", "at least 1", "-5")),
    "negative latent_dim in TOML": (
        lambda tmp_path: from_toml(tmp_path, "latent_dim = -5"),
        ("latent_dim", "must be >= 1", "-5", "run.toml"),
    ),
    "latent larger than the weights": (
        lambda _: MappingModel(nn.Linear(4, 2), 256, "slvt"),
        ("latent_dim=256", "10 mapped weights", "latent_dim <= 10"),
    ),
    "unknown TOML key": (
        lambda tmp_path: from_toml(tmp_path, "latent_dim = 5\n[trainer]\nmax_epoch = 3"),
        ("trainer.max_epoch", "unknown key", "did you mean 'max_epochs'?", "run.toml"),
    ),
    "unknown key of a component": (
        lambda tmp_path: from_toml(tmp_path, 'latent_dim = 5\n[strategy]\ntype = "slvt"\nrank = 3'),
        ("strategy.rank", "unknown key"),
    ),
    "wrong type": (
        lambda tmp_path: from_toml(tmp_path, 'latent_dim = "many"'),
        ("latent_dim", "expected an integer", "'many' (str)"),
    ),
    "wrong type of a component": (lambda _: MappingModel(targets.mlp(), 16, strategy=3), ("strategy", "3 (int)")),  # type: ignore[arg-type]
    "empty loader": (
        lambda _: MappingTrainer(MappingModel(targets.mlp(), 16), [], accelerator="cpu", progress=False).fit(),
        ("train_loader", "empty"),
    ),
    "module without parameters": (lambda _: MappingModel(nn.ReLU(), 1), ("ReLU", "no parameter to map")),
    "no module": (lambda _: MappingModel(targets.mlp, 1), ("target_model", "torch.nn.Module", "function")),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", BAD)
def test_one_clear_line(name: str, tmp_path: Path) -> None:
    """The error is ours, a ValueError as callers expect, one line, and names the thing and the way out."""
    make, parts = BAD[name]
    with pytest.raises(ValueError, match=r".") as caught:
        make(tmp_path)
    text = str(caught.value)
    assert isinstance(caught.value, MappingError)
    assert "\n" not in text
    assert not [part for part in parts if part not in text], text


def test_on_the_command_line(tmp_path: Path) -> None:
    """The installed command prints one line on standard error, nothing else, and ends with code 2."""
    (tmp_path / "run.toml").write_text('target = "cnn2"\ndata = "mnist"\nlatent_dim = -5\n', encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "mapping_core", "train", "run.toml"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == "mapping: error: latent_dim: must be >= 1: -5 (in run.toml)\n"
