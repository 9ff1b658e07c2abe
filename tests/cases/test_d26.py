"""D26: writing a checkpoint. Source: Lightning issue 19970 (a write that fails half-way takes the old file with it)."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest
import torch

from mapping_core import CheckpointError, MappingModel, MappingTrainer
from mapping_core.training.checkpoint import MODEL, STATE, checkpoints_in
from mapping_core.training.occupation import LOCK
from tests import targets

WRITE = Path.write_bytes


def failing(name: str) -> Any:
    """`Path.write_bytes` on a disk that is full after half of a file of this name."""

    def write(path: Path, data: bytes) -> int:
        if name in path.name:
            WRITE(path, data[: len(data) // 2])
            raise OSError(errno.ENOSPC, "No space left on device")
        return WRITE(path, data)

    return write


def run(folder: Path, **options: Any) -> MappingTrainer:
    """Return a trainer with checkpoints at each step."""
    model = MappingModel(targets.mlp(), 16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    return targets.trainer_of(model, optimizer=optimizer, run_dir=folder, checkpoint_every=1, **options)


@pytest.mark.parametrize("name", [MODEL, STATE])
def test_the_old_one_loads(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that fails half-way ends the run, leaves the earlier checkpoint and no other file, and it goes on."""
    run(tmp_path, max_steps=2).fit()
    before = sorted(path.relative_to(tmp_path) for path in (tmp_path / "checkpoints").rglob("*"))
    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", failing(name))
        with pytest.raises(
            CheckpointError, match=r"step-00000003: cannot be written: No space left on device; earlier"
        ):
            run(tmp_path).fit(resume="last")
    assert sorted(path.relative_to(tmp_path) for path in (tmp_path / "checkpoints").rglob("*")) == before
    assert {path.name for path in tmp_path.glob(".*")} <= {LOCK}
    assert checkpoints_in(tmp_path)[-1].name == "step-00000002"
    resumed, whole = run(tmp_path), run(tmp_path / "whole")
    resumed.fit(resume="last")
    whole.fit()
    assert torch.equal(targets.latent_of(resumed), targets.latent_of(whole))


@pytest.mark.parametrize("size", [0, 100, -1])
def test_a_damaged_file_says_which(size: int, tmp_path: Path) -> None:
    """A checkpoint whose file was cut is an error with its path, and the model keeps its numbers."""
    run(tmp_path, max_steps=2).fit()
    for name in (MODEL, STATE):
        path = checkpoints_in(tmp_path)[-1] / name
        whole = path.read_bytes()
        path.write_bytes(whole[:size])
        again = run(tmp_path)
        with pytest.raises(ValueError, match=rf"{path}: is (damaged|no )"):
            again.fit(resume="last")
        assert not targets.latent_of(again).any()
        path.write_bytes(whole)
