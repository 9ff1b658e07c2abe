"""The header of a model's file, read without torch: its recipe, and what tensors it holds.

A safetensors file is 8 bytes with the length of a header, the header in JSON, and the
tensors' bytes. `mapping_core.files` writes and loads whole files.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attrs import define

import mapping_core
from mapping_core.components import KINDS
from mapping_core.errors import FileFormatError

#: The version of the recipe; a file with a higher one is refused. In 1 there is no `scales`, the hash of the
#: rows' scales; before 3 latents are never packed and bases never moved.
FORMAT = 3

#: The entry of a file's metadata that holds the recipe.
KEY = "mapping_core"

_LONGEST_HEADER = 100_000_000  # as in safetensors

#: What `MappingModel.load` needs of a recipe, and as what.
_FIELDS: dict[str, type] = {
    "latent_dim": int,
    "seed": int,
    "base": str,
    "buffers": str,
    "components": dict,
    "weights": int,
    "layout": str,
    "roles": dict,
    "base_sha256": str,
}
_SINCE_2: dict[str, type] = {"scales": str}
_COMPONENTS = frozenset({"strategy", "mapper", "modulation"})
_ROLES = frozenset({"mapped", "trained", "frozen"})


@define(frozen=True)
class TensorEntry:
    """A tensor of a file: its name, its dtype in safetensors' spelling, its shape, and its bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int


@define(frozen=True)
class Header:
    """What a file says of itself, and its size in bytes."""

    recipe: dict[str, Any]
    tensors: tuple[TensorEntry, ...]
    file_bytes: int

    @property
    def newer(self) -> bool:
        """Whether this version does not know the recipe's format."""
        return bool(self.recipe["format"] > FORMAT)


def read_header(path: str | Path) -> Header:
    """Read a file's header; raises `FileFormatError` for any other kind of file."""
    path = Path(path)
    if not path.is_file():
        raise FileFormatError(f"{path}: there is no such file")
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > min(size - 8, _LONGEST_HEADER):
                raise ValueError("its header is cut short")
            entries = json.loads(file.read(length))
        metadata = dict(entries.pop("__metadata__", {}))
        tensors = tuple(_entry(name, entry) for name, entry in entries.items())
        if sum(tensor.bytes for tensor in tensors) != size - 8 - length:
            raise ValueError("the size of its tensors is not that of the file")
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise FileFormatError(f"{path}: is damaged, or not a safetensors file: {error}") from error
    header = Header(recipe_of(path, metadata), tensors, size)
    if not header.newer:
        check_recipe(path, header.recipe)
    return header


def _entry(name: str, entry: Mapping[str, Any]) -> TensorEntry:
    start, stop = entry["data_offsets"]
    return TensorEntry(name, str(entry["dtype"]), tuple(map(int, entry["shape"])), int(stop) - int(start))


def recipe_of(path: str | Path, metadata: Mapping[str, str]) -> dict[str, Any]:
    """The recipe in a file's metadata, of whatever format; raises `FileFormatError` when there is none."""
    if KEY not in metadata:
        raise FileFormatError(f"{path}: is a safetensors file, but was not written by MappingModel.save")
    try:
        recipe: dict[str, Any] = json.loads(metadata[KEY])
        for key, kind in (("format", int), ("random", int), ("version", str)):
            if not isinstance(recipe[key], kind):
                raise TypeError(f"{key} is {recipe[key]!r}")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise FileFormatError(
            f"{path}: is damaged, its recipe cannot be read: {type(error).__name__}: {error}"
        ) from error
    return recipe


def newer_error(path: str | Path, recipe: Mapping[str, Any]) -> FileFormatError:
    """The error of a file that only a later version of this package can read."""
    return FileFormatError(
        f"{path}: was written by mapping-core {recipe['version']}, this is {mapping_core.__version__} and cannot "
        "read it: pip install --upgrade mapping-core"
    )


def check_recipe(path: str | Path, recipe: Mapping[str, Any]) -> None:
    """Raise `FileFormatError` when a recipe of a known format lacks an entry, or has one of another kind."""
    fields = _FIELDS if recipe["format"] < 2 else {**_FIELDS, **_SINCE_2}
    if missing := fields.keys() - recipe.keys():
        raise FileFormatError(f"{path}: is damaged, its recipe lacks {', '.join(sorted(missing))}")
    wrong = [key for key, kind in fields.items() if type(recipe[key]) is not kind]
    if not wrong:
        components, roles = recipe["components"], recipe["roles"]
        if not (
            {"strategy", "mapper"} <= components.keys() <= _COMPONENTS and all(map(_is_component, components.values()))
        ):
            wrong.append("components")
        if not (roles.keys() <= _ROLES and all(isinstance(patterns, list) for patterns in roles.values())):
            wrong.append("roles")
    if wrong:
        raise FileFormatError(f"{path}: is damaged, its recipe has the wrong kind of {', '.join(wrong)}")


def _is_component(entry: object) -> bool:
    return (
        isinstance(entry, dict)
        and isinstance(entry.get("settings"), dict)
        and isinstance(entry["settings"].get("type"), str)
        and isinstance(entry.get("supplier", 0), str | None)
        and isinstance(entry.get("nested", {}), dict)
        and all(map(_is_nested, entry.get("nested", {}).values()))
    )


def _is_nested(entry: object) -> bool:
    return isinstance(entry, dict) and entry.get("kind") in KINDS and isinstance(entry.get("supplier", 0), str | None)


def supplier_at(recipe: Mapping[str, Any], path: str) -> str | None:
    """Who supplies the component that an error's path is about: one of the recipe's, or one inside it."""
    role, _, below = path.partition(".")
    component = recipe["components"][role]
    inside = component.get("nested", {})
    found = max((at for at in inside if below == at or below.startswith((f"{at}.", f"{at}["))), key=len, default=None)
    supplier: str | None = (component if found is None else inside[found])["supplier"]
    return supplier
