"""Nested states as one safetensors file: no pickle is written, and none is read.

What `state_dict` methods give is a nest of dictionaries, lists and plain values with tensors
in it. The tensors go into the file as such, the nest as JSON into its metadata.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy
import safetensors
import torch
from torch import Tensor

from mapping_core.errors import CheckpointError, FileFormatError
from mapping_core.files import write_tensors

_KEY = "mapping_core_state"
_MARK = "~"


def write_state(path: Path, state: Mapping[str, Any]) -> None:
    """Write a nest of plain values and tensors; raises `CheckpointError` that says where anything else stands."""
    tensors: dict[str, Tensor] = {}
    text = json.dumps(_packed(state, tensors, ""))
    # An empty tensor, since a safetensors file may not be without one.
    write_tensors(path, tensors or {"none": torch.zeros(0)}, {_KEY: text})


def read_state(path: Path) -> dict[str, Any]:
    """Read what `write_state` wrote, on the CPU; raises `FileFormatError` for any other kind of file."""
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            text = (file.metadata() or {}).get(_KEY)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118, it is no mapping
        if text is None:
            raise FileFormatError(f"{path}: is no state of a training run")
        state: dict[str, Any] = _unpacked(json.loads(text), tensors)
    except (safetensors.SafetensorError, OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        if isinstance(error, FileFormatError):
            raise
        raise FileFormatError(f"{path}: is damaged, or not a safetensors file: {error}") from error
    return state


def check_plain(state: Any, place: str) -> None:
    """Raise `CheckpointError` if `write_state` could not write this, so that it is known before training."""
    _packed(state, {}, place)


def _packed(value: Any, tensors: dict[str, Tensor], place: str) -> Any:
    if isinstance(value, numpy.generic):
        value = value.item()
    if isinstance(value, Tensor):
        name = f"{len(tensors)}"
        tensors[name] = value
        return {_MARK: "tensor", "name": name}
    # By exact type: an Enum that is a str too would come back as a str.
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float:
        return value if value == value and abs(value) != float("inf") else {_MARK: "float", "value": repr(value)}
    if type(value) is bytes:
        return {_MARK: "bytes", "value": base64.b64encode(value).decode()}
    if isinstance(value, Mapping):
        pairs = [(key, _packed(item, tensors, f"{place}[{key!r}]")) for key, item in value.items()]
        if all(type(key) is str and not key.startswith(_MARK) for key, _ in pairs):
            return dict(pairs)
        return {_MARK: "dict", "items": [[_packed(key, tensors, f"{place} key"), item] for key, item in pairs]}
    if type(value) is list:
        return [_packed(item, tensors, f"{place}[{index}]") for index, item in enumerate(value)]
    if type(value) in (tuple, torch.Size):  # a named one would come back without its names
        items = [_packed(item, tensors, f"{place}[{index}]") for index, item in enumerate(value)]
        return {_MARK: "tuple", "items": items}
    raise CheckpointError(
        f"a checkpoint holds plain values, lists, dictionaries and tensors; {place.lstrip('.') or 'this state'} is "
        f"{type(value).__module__}.{type(value).__qualname__}: return its plain content from state_dict"
    )


def _unpacked(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(value, list):
        return [_unpacked(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    match value.get(_MARK):
        case None:
            return {key: _unpacked(item, tensors) for key, item in value.items()}
        case "tensor":
            return tensors[value["name"]]
        case "float":
            return float(value["value"])
        case "bytes":
            return base64.b64decode(value["value"])
        case "tuple":
            return tuple(_unpacked(item, tensors) for item in value["items"])
        case "dict":
            return {_unpacked(key, tensors): _unpacked(item, tensors) for key, item in value["items"]}
        case mark:
            raise FileFormatError(f"a state holds {mark!r}, which this version does not know")
