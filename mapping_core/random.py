"""Counter-based random numbers: the same seed gives the same mapping everywhere, for years.

Philox 4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3",
SC 2011) turns a 128-bit counter and a 64-bit key into 128 random bits. There is no state:
number `i` of a stream does not depend on how many were drawn before it, on the device, on
the number of threads or on the torch version. torch's own generators promise none of that.

A stream is named by `(seed, stream, purpose)`. The key is the seed; the counter holds the
index of the block of four words (64 bits), the stream and the purpose (32 bits each).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

#: Written into files: a file made under another version describes another mapping.
VERSION = 1

_MASK = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10


def philox4x32(counter: Tensor, key: tuple[int, int]) -> Tensor:
    """Encrypt counters: Philox 4x32 with ten rounds.

    `counter` is int64 [..., 4] and holds 32-bit words; `key` is two 32-bit words. Returns
    int64 [..., 4] with 32-bit words, on the counter's device.

    >>> words = philox4x32(torch.zeros(4, dtype=torch.int64), (0, 0))
    >>> " ".join(f"{word:08x}" for word in words.tolist())
    '6627e8d5 e169c58d bc57ac4c 9b00dbd8'
    """
    c0, c1, c2, c3 = counter.unbind(-1)
    k0, k1 = key
    for _ in range(_ROUNDS):
        high0, low0 = _multiply(c0, _MULTIPLIERS[0])
        high1, low1 = _multiply(c2, _MULTIPLIERS[1])
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + _KEY_STEPS[0]) & _MASK, (k1 + _KEY_STEPS[1]) & _MASK
    return torch.stack((c0, c1, c2, c3), dim=-1)


def _multiply(words: Tensor, factor: int) -> tuple[Tensor, Tensor]:
    """High and low half of the 64-bit product of 32-bit words, within signed int64."""
    low = words * (factor & 0xFFFF)
    middle = words * (factor >> 16) + (low >> 16)
    return middle >> 16, ((middle & 0xFFFF) << 16) | (low & 0xFFFF)


class RandomStream:
    """Reproducible draws from the stream `(seed, stream, purpose)`.

    Each method gives the first `count` values of the stream (or those after `start`), so two calls of
    the same method give the same numbers: use another `purpose` where independent ones are needed.
    `seed` is any 64-bit number, `stream` and `purpose` any 32-bit number.

    >>> RandomStream(7).signs(6).tolist()
    [-1, 1, -1, -1, 1, -1]
    """

    def __init__(self, seed: int, stream: int = 0, purpose: int = 0) -> None:
        for name, value, bits in (("seed", seed, 64), ("stream", stream, 32), ("purpose", purpose, 32)):
            if not 0 <= value < 1 << bits:
                raise ValueError(f"{name} must be in [0, 2**{bits}), got {value}")
        self._key = (seed & _MASK, seed >> 32)
        self._stream = stream
        self._purpose = purpose

    def words(self, count: int, *, start: int = 0) -> Tensor:
        """Uniform 32-bit words `start`, `start` + 1, ... of the stream, as int64 [count]."""
        first = start // 4
        blocks = torch.arange(first, -(-(start + count) // 4))
        fixed = torch.tensor([self._stream, self._purpose]).expand(len(blocks), 2)
        counter = torch.cat((torch.stack((blocks & _MASK, blocks >> 32), dim=1), fixed), dim=1)
        return philox4x32(counter, self._key).reshape(-1)[start - 4 * first :][:count]

    def signs(self, count: int) -> Tensor:
        """Fair signs, +1 or -1, as int8 [count]; one word gives 32, lowest bit first."""
        words = self.words(-(-count // 32))
        bits = (words[:, None] >> torch.arange(32)) & 1
        return (1 - 2 * bits.reshape(-1)[:count]).to(torch.int8)

    def uniform(self, count: int, *, start: int = 0) -> Tensor:
        """Numbers in (0, 1), never 0 or 1, as float64 [count], in steps of 2**-32; one a word, from word `start` on."""
        return (self.words(count, start=start).double() + 0.5) / 2.0**32

    def normal(self, count: int, *, start: int = 0) -> Tensor:
        """Standard normal numbers as float64 [count], by Box-Muller: two from two words.

        `start` skips as many numbers and must be even.
        """
        if start % 2:
            raise ValueError(f"start must be even, since normal numbers are drawn in pairs; got {start}")
        pairs = -(-count // 2)
        first, second = self.uniform(2 * pairs, start=start).view(pairs, 2).unbind(1)
        radius, angle = (-2.0 * first.log()).sqrt(), 2.0 * math.pi * second
        return torch.stack((radius * angle.cos(), radius * angle.sin()), dim=1).reshape(-1)[:count]
