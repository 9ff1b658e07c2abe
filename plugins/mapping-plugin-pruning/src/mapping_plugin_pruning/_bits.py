"""Masks as bits: eight to a byte, lowest first."""

from __future__ import annotations

import torch
from torch import Tensor


def packed(mask: Tensor) -> Tensor:
    """A mask (bool, any shape) as uint8 [ceil(numel / 8)].

    >>> packed(torch.tensor([True, False, True, True])).tolist()
    [13]
    """
    bits = mask.reshape(-1).to(torch.uint8)
    bits = torch.cat((bits, bits.new_zeros(-len(bits) % 8))).view(-1, 8)
    return (bits << torch.arange(8, dtype=torch.uint8, device=bits.device)).sum(dim=1, dtype=torch.uint8)


def byte_table() -> Tensor:
    """The bits of each byte, bool [256, 8]: looking them up is several times faster than shifting."""
    return (torch.arange(256)[:, None] >> torch.arange(8)).bitwise_and(1).bool()


def unpacked(packed: Tensor, table: Tensor, start: int, stop: int) -> Tensor:
    """The bits `start` to `stop` of a packed mask, bool [stop - start].

    >>> unpacked(torch.tensor([13], dtype=torch.uint8), byte_table(), 1, 4).tolist()
    [False, True, True]
    """
    first = start // 8
    some = packed[first : -(-stop // 8)]
    return table.index_select(0, some.int()).reshape(-1)[start - 8 * first : stop - 8 * first]
