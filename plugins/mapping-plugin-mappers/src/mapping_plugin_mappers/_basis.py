"""The file of a basis: orthonormal directions in the space of a target's weights.

A safetensors file with `directions` [k, n] float32, each weight in units of its row scale,
and `spreads` [k], how far the recorded run moved along each. Its SHA-256 is what a model's
file remembers of it.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import safetensors
from torch import Tensor

from mapping_core import FileFormatError
from mapping_core.files import write_tensors

_KEY, _FORMAT = "mapping_plugin_mappers", 1


def write_basis(path: str | Path, directions: Tensor, spreads: Tensor) -> None:
    """Write a basis whole or not at all."""
    header = json.dumps({"basis": _FORMAT})
    write_tensors(path, {"directions": directions, "spreads": spreads}, {_KEY: header})


def read_basis(path: str | Path, sha256: str, count: int) -> tuple[Tensor, int]:
    """The first `count` directions of a basis [count, n], and how many it holds.

    Raises `FileFormatError` where there is no basis, or another than `sha256` says.
    """
    if not Path(path).is_file():
        raise FileFormatError(f"{path}: there is no such file; mapper 'trajectory' needs the basis it was made with")
    with Path(path).open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != sha256:
        raise FileFormatError(f"{path}: holds another basis, of SHA-256 {found[:8]}...; expected {sha256[:8]}...")
    try:
        with safetensors.safe_open(path, framework="pt") as opened:
            header = json.loads((opened.metadata() or {})[_KEY])
            if header["basis"] > _FORMAT:
                raise ValueError(f"its format is {header['basis']}, this version reads up to {_FORMAT}")
            directions = opened.get_slice("directions")
            return directions[:count], directions.get_shape()[0]
    except (safetensors.SafetensorError, KeyError, ValueError, TypeError) as error:
        raise FileFormatError(
            f"{path}: is no basis that TrajectoryRecorder.save wrote, or is damaged: {error}"
        ) from error
