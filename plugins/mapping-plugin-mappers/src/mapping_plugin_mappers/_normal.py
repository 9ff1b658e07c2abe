"""Normal numbers in 256 levels: cheap to draw, and the same integers on every machine."""

from __future__ import annotations

from statistics import NormalDist

import torch
from torch import Tensor

from mapping_core.random import RandomStream

_STEPS = 32  # to a standard deviation
#: Quantiles of the normal distribution at the middle of 256 equally likely intervals, in whole steps; none is 0.
LEVELS = tuple(
    sign * max(1, round(_STEPS * NormalDist().inv_cdf((128.5 + level) / 256)))
    for sign, levels in ((-1, range(127, -1, -1)), (1, range(128)))
    for level in levels
)


def normal_levels(stream: RandomStream, start: int, count: int, like: Tensor) -> Tensor:
    """Numbers `start`, `start` + 1, ... of a stream, in steps: each is one byte of its words, lowest first.

    They have the dtype and device of `like`, and are drawn there.
    """
    first, skipped = divmod(start, 4)
    with like.device:
        # As 32-bit numbers the indices take half the time.
        words = stream.words(-(-(start + count) // 4) - first, start=first).int()
        index = (words[:, None] >> torch.arange(0, 32, 8, dtype=torch.int32)) & 255
    levels = torch.tensor(LEVELS, dtype=like.dtype, device=like.device)
    return levels.index_select(0, index.flatten()[skipped : skipped + count])
