"""Checkpoints of a run: folders that are either whole or not there.

``run_dir/checkpoints/step-00000042/`` holds ``model.safetensors``, the trained state as
`MappingModel.save` writes it but for a latent that is never packed, and ``state.safetensors``,
everything else that the run goes on from. ``run_dir/base.safetensors``, written once a run, holds
the target as it was given.
"""

from __future__ import annotations

import copy
import os
import re
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import nn

from mapping_core import files
from mapping_core.errors import CheckpointError, ConfigError, FileFormatError
from mapping_core.logs import get_logger
from mapping_core.model import MappingModel
from mapping_core.target.fingerprint import fingerprint
from mapping_core.target.wrappers import unwrapped
from mapping_core.training.state import read_state, write_state

MODEL, STATE, BASE = "model.safetensors", "state.safetensors", "base.safetensors"
RESOLVED, BEST = "resolved.toml", "best"
_NAME = re.compile(r"step-(\d+)")
_OLD = ".replaced-"


def write_checkpoint(folder: Path, model: nn.Module, state: Mapping[str, Any]) -> Path:
    """Write the model's trained state and the run's to `folder` and return it.

    Written under another name beside its place, flushed to the disk, and renamed when it is
    complete: whatever interrupts it, the folder is whole, or is what it was.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Not by `tempfile`, whose folders nobody else may read, even after the renaming.
    temporary = folder.with_name(f".{folder.name}-{secrets.token_hex(4)}")
    temporary.mkdir()
    try:
        write_model(temporary / MODEL, model)
        write_state(temporary / STATE, state)
        for path in (temporary / MODEL, temporary / STATE, temporary):
            _flush(path)
        old = folder.with_name(f"{_OLD}{folder.name}")
        if folder.exists():
            folder.replace(old)
        temporary.replace(folder)
        _flush(folder.parent)
        shutil.rmtree(old, ignore_errors=True)
    except BaseException as error:
        shutil.rmtree(temporary, ignore_errors=True)
        if isinstance(error, OSError):  # which may not say what it is about
            raise CheckpointError(
                f"{folder}: cannot be written: {error.strerror or error}; earlier checkpoints are whole, "
                "and the run can be resumed from the last one"
            ) from error
        raise
    return folder


def write_model(path: Path, model: nn.Module) -> None:
    """Write a model's trained state: a mapped one as its `save` does, any other as the tensors of its `state_dict`."""
    model = unwrapped(model)
    if isinstance(model, MappingModel):
        # Training goes on with all that the latent holds, also where its weights need less of it.
        files.write(path, model, packed=False)
    else:
        safetensors.torch.save_model(model, str(path))
        path.chmod(path.parent.stat().st_mode & 0o666)  # as any new file, not for its owner alone


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_checkpoint(folder: Path) -> dict[str, Any]:
    """Read a checkpoint's state; raises `FileFormatError` for what is no checkpoint, or half of one."""
    _check_checkpoint(folder)
    return read_state(folder / STATE)


def restore_model(folder: Path, model: nn.Module) -> None:
    """Take a checkpoint's weights over into a model that was built as the checkpoint's was."""
    model = unwrapped(model)
    if isinstance(model, MappingModel):
        base = folder.parent.parent / BASE
        if files.differences(folder / MODEL, model) == ["base_sha256"] and base.is_file():
            _restore_base(base, model)
        files.restore(folder / MODEL, model)
        return
    before = copy.deepcopy(model.state_dict())
    try:
        safetensors.torch.load_model(model, str(folder / MODEL))
    except RuntimeError as error:
        model.load_state_dict(before)  # torch takes over what fits before it says what does not
        raise FileFormatError(f"{folder / MODEL}: does not fit this {type(model).__name__}: {error}") from error


def write_base(run_dir: Path, model: nn.Module) -> None:
    """Keep the target as it was given beside the checkpoints, which do without it.

    A run then goes on even though the script that makes its target draws other weights each time.
    """
    model = unwrapped(model)
    path = run_dir / BASE
    if not isinstance(model, MappingModel):
        return
    given = model.target.given()
    if fingerprint(given) == model.base_fingerprint():  # which a model that was rounded is not any more
        files.write_tensors(path, given, {})
        _flush(path)


def _restore_base(path: Path, model: MappingModel) -> None:
    try:
        model.target.give(safetensors.torch.load_file(path))
    except safetensors.SafetensorError as error:
        raise FileFormatError(f"{path}: is damaged, or not a safetensors file: {error}") from error


def checkpoints_in(run_dir: Path) -> list[Path]:
    """The checkpoints of a run, the last step last; what an interrupted write left is put right first."""
    folder = run_dir / "checkpoints"
    for old in folder.glob(f"{_OLD}*"):
        place = folder / old.name.removeprefix(_OLD)
        if place.exists():
            shutil.rmtree(old)
        else:
            old.replace(place)
    for partial in folder.glob(".step-*"):
        shutil.rmtree(partial)
    found = [path for path in folder.glob("step-*") if _NAME.fullmatch(path.name)]
    return sorted(found, key=step_of)


def clear_unfinished(run_dir: Path) -> None:
    """Remove the files that a killed run had not finished."""
    for name in (f".{BASE}-*", f".{RESOLVED}-*", f"checkpoints/.{BEST}-*"):
        for partial in run_dir.glob(name):
            partial.unlink()


def step_of(checkpoint: Path) -> int:
    """The optimiser steps done at a checkpoint."""
    match = _NAME.fullmatch(checkpoint.name)
    return int(match[1]) if match else -1


def _check_checkpoint(folder: Path) -> None:
    if not folder.is_dir():
        raise FileFormatError(f"{folder}: is not there; resume is 'last', 'best', or the folder of a checkpoint")
    if (folder / "checkpoints").is_dir():
        raise FileFormatError(
            f"{folder}: is a run, not one of its checkpoints: make it the run_dir and resume 'last', or name one of "
            f"{folder / 'checkpoints'}"
        )
    for name in (MODEL, STATE):
        if not (folder / name).is_file():
            raise FileFormatError(f"{folder}: is no checkpoint of a run, it has no {name}")


def check_resume(resume: Any) -> None:
    """Raise `ConfigError` for what says no checkpoint, `FileFormatError` for a folder that is none."""
    if resume in (None, "last", "best"):
        return
    if not isinstance(resume, str | os.PathLike):
        raise ConfigError(f"must be 'last', 'best', or the folder of a checkpoint, got {resume!r}", path="resume")
    _check_checkpoint(Path(resume))


def find_checkpoint(resume: str | Path, run_dir: Path | None) -> Path | None:
    """The checkpoint that ``fit(resume=...)`` means; None for ``"last"`` and ``"best"`` in a run without any."""
    if resume not in ("last", "best"):
        return Path(resume)
    if run_dir is None:
        raise CheckpointError(f"resume={resume!r} looks in run_dir, which is not set: pass run_dir=, or a path")
    found = checkpoints_in(run_dir)
    if not found:
        get_logger().info("nothing to resume", run_dir=str(run_dir))
        return None
    if resume == "last":
        return found[-1]
    marker = run_dir / "checkpoints" / BEST
    if not marker.is_file():
        raise CheckpointError(f"{run_dir} has no best checkpoint: 'best' is known after a first validation")
    return run_dir / "checkpoints" / marker.read_text().strip()


def remove_checkpoint(folder: Path) -> None:
    """Remove a checkpoint; whatever interrupts it, no half of one is left under its name."""
    going = folder.with_name(f".{folder.name}-{secrets.token_hex(4)}")
    folder.replace(going)
    shutil.rmtree(going)


def mark_best(checkpoint: Path) -> None:
    """Name the best checkpoint of its run in a file beside it."""
    temporary = checkpoint.with_name(f".{BEST}-{secrets.token_hex(4)}")
    try:
        temporary.write_text(checkpoint.name + "\n")
        temporary.replace(checkpoint.with_name(BEST))
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def set_aside(run_dir: Path, after: int = -1) -> None:
    """Move checkpoints of steps beyond `after` to ``earlier-001/``: another run begins, and nothing is lost."""
    stale = [path for path in checkpoints_in(run_dir) if step_of(path) > after]
    if not stale:
        return
    number = 1
    while (aside := run_dir / f"earlier-{number:03d}" / "checkpoints").exists():
        number += 1
    aside.mkdir(parents=True)
    marker = run_dir / "checkpoints" / BEST
    if marker.is_file() and marker.read_text().strip() in {path.name for path in stale}:
        marker.replace(aside / BEST)
    for path in stale:
        path.replace(aside / path.name)
    for name in (BASE, RESOLVED):
        if (run_dir / name).is_file():
            shutil.copyfile(run_dir / name, aside.parent / name)
    get_logger().warning("earlier checkpoints set aside", folder=str(aside.parent), steps=[step_of(p) for p in stale])
