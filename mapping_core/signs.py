"""Signs kept as bits, 32 in an integer, and made numbers when a pass needs them."""

from __future__ import annotations

import torch
from torch import Tensor

_BITS = 32
_SIGN, _ONE = -(1 << 31), 0x3F800000  # float32: the bit of the sign, and the bits of 1.0


def pack(signs: Tensor) -> Tensor:
    """Signs [n] as bits, int32 [n / 32] rounded up, the lowest bit first; `unpack` gives them back."""
    negative = torch.zeros(-(-len(signs) // _BITS) * _BITS, dtype=torch.int64)
    negative[: len(signs)] = signs < 0
    words = (negative.view(-1, _BITS) << torch.arange(_BITS)).sum(1)
    return torch.where(words < 1 << 31, words, words - (1 << 32)).int()


def shifts() -> Tensor:
    """What `unpack` shifts by, int32 [32]: to keep beside the bits, on their device."""
    return torch.arange(_BITS - 1, -1, -1, dtype=torch.int32)


def unpack(words: Tensor, by: Tensor, dtype: torch.dtype) -> Tensor:
    """The signs in `words` as numbers, +1 and -1, [32 len(words)]; `by` is `shifts()`.

    >>> signs = torch.tensor([1, -1, -1, 1, -1])
    >>> unpack(pack(signs), shifts(), torch.float32)[:5].tolist()
    [1.0, -1.0, -1.0, 1.0, -1.0]
    """
    # Each bit goes to where float32 has its sign, and the others become those of 1.0: three passes over
    # integers, in place.
    bits = (words.unsqueeze(1) << by).bitwise_and_(_SIGN).bitwise_or_(_ONE)
    signs = bits.view(torch.float32).view(-1)
    return signs if dtype == torch.float32 else signs.to(dtype)
