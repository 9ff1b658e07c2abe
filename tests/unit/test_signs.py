"""Signs as bits."""

from __future__ import annotations

import pytest
import torch

from mapping_core.random import RandomStream
from mapping_core.signs import pack, shifts, unpack


@pytest.mark.parametrize("count", [0, 1, 31, 32, 33, 1000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_round_trip(count: int, dtype: torch.dtype) -> None:
    """Unpacking gives the signs back, as numbers, from a bit each; what fills the last word is +1."""
    signs = RandomStream(3).signs(count)
    words = pack(signs)
    assert words.dtype == torch.int32
    assert len(words) == -(-count // 32)
    found = unpack(words, shifts(), dtype)
    assert found.dtype == dtype
    assert torch.equal(found[:count], signs.to(dtype))
    assert (found[count:] == 1).all()


def test_lowest_bit_first() -> None:
    """The order of the bits is the one in which a stream gives signs from its words."""
    words = RandomStream(3).words(2)
    assert (pack(RandomStream(3).signs(64)).long() & 0xFFFFFFFF).tolist() == words.tolist()
