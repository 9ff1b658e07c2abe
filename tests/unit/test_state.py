"""States as files: what goes in comes out, and nothing else does."""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import Any

import numpy
import pytest
import safetensors.torch
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from mapping_core import CheckpointError
from mapping_core.errors import FileFormatError
from mapping_core.training.state import check_plain, read_state, write_state

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool]

tensors = st.builds(
    lambda shape, dtype, seed: torch.randint(0, 2, shape, generator=torch.Generator().manual_seed(seed)).to(dtype),
    st.lists(st.integers(0, 3), max_size=3),
    st.sampled_from(DTYPES),
    st.integers(0, 9),
)
scalars = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(max_size=8) | st.just("~") | tensors
)
keys = st.text() | st.integers() | st.booleans() | st.none() | st.tuples(st.integers(), st.text()) | st.just("~mark")
nests = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3) | st.lists(inner, max_size=3).map(tuple) | st.dictionaries(keys, inner, max_size=3)
    ),
    max_leaves=12,
)


def same(a: Any, b: Any) -> bool:
    """Equal in type and value: NaN is NaN, 1 is not True, a tuple is not a list."""
    if type(a) is not type(b):
        return False
    if isinstance(a, Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)
    if isinstance(a, float):
        return struct.pack("d", a) == struct.pack("d", b) or (math.isnan(a) and math.isnan(b))
    if isinstance(a, dict):
        pairs = zip(a.items(), b.items(), strict=True)
        return len(a) == len(b) and all(same(k, m) and same(v, w) for (k, v), (m, w) in pairs)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(state=st.dictionaries(keys, nests, max_size=4))
def test_round_trip(state: dict[Any, Any], tmp_path: Path) -> None:
    """Any nest of plain values and tensors comes back as it was, types and all."""
    check_plain(state, "the state")
    write_state(tmp_path / "s", state)
    assert same(read_state(tmp_path / "s"), state)


def test_tensors_of_all_kinds(tmp_path: Path) -> None:
    """Views, tensors that share memory or ask for gradients, and sizes come back by value."""
    whole = torch.arange(12.0)
    state = {
        "view": whole[2:5],
        "same": whole,
        "across": whole.view(3, 4).t(),
        "expanded": torch.ones(1).expand(3),
        "parameter": torch.nn.Parameter(torch.ones(2)),
        "size": torch.Size([2, 3]),
        "number": numpy.float32(0.5),
        "word": numpy.int64(7),
        "true": numpy.bool_(True),
    }
    write_state(tmp_path / "s", state)
    read = read_state(tmp_path / "s")
    for name in ("view", "same", "across", "expanded", "parameter"):
        assert torch.equal(read[name], state[name])  # type: ignore[arg-type]
    assert (read["size"], read["number"], read["word"], read["true"]) == ((2, 3), 0.5, 7, True)


def test_what_is_not_plain_says_where(tmp_path: Path) -> None:
    """The place is given as one would index it; nothing is written."""
    with pytest.raises(CheckpointError, match=r"\['a'\]\[1\]\['b'\] is builtins.set: return its plain content"):
        write_state(tmp_path / "s", {"a": [0, {"b": {1}}]})
    with pytest.raises(CheckpointError, match=r"\['a'\] key\[1\] is builtins.frozenset"):
        write_state(tmp_path / "s", {"a": {(0, frozenset()): 1}})
    assert not list(tmp_path.iterdir())


def test_files_that_are_no_states(tmp_path: Path) -> None:
    """Another kind of safetensors file, text, a cut file, and one of a later version are errors with the path."""
    path = tmp_path / "s"
    safetensors.torch.save_file({"a": torch.zeros(1)}, path)
    with pytest.raises(FileFormatError, match="s: is no state of a training run"):
        read_state(path)
    path.write_text("no")
    with pytest.raises(FileFormatError, match="s: is damaged, or not a safetensors file"):
        read_state(path)
    write_state(path, {"a": torch.ones(100)})
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(FileFormatError, match="s: is damaged"):
        read_state(path)
    for text in ('{"~": "later"}', '{"~": "tensor", "name": "9"}', "{", "[" * 100_000, '{"a": {"~": "float"}}'):
        safetensors.torch.save_file({"0": torch.zeros(1)}, path, {"mapping_core_state": text})
        with pytest.raises(FileFormatError, match=r"s: is damaged|a state holds 'later'"):
            read_state(path)
