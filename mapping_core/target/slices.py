"""Large linear and convolution layers, run a few rows of their weight at a time.

In most networks a handful of layers hold most of the weights; lazy generation of a whole
one would still take twice its size, for the weight and its gradient.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

#: How many weights are generated at once: 4 MB of float32.
SLICE = 1 << 20

Rows = tuple[int, int]


def slices_of(module: nn.Module) -> list[Rows]:
    """The ranges of output rows to run one after the other; empty for a module to be run whole.

    >>> slices_of(nn.Linear(1024, 3000, device="meta"))
    [(0, 1024), (1024, 2048), (2048, 3000)]
    """
    if type(module) not in (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d) or "forward" in vars(module):
        return []
    weight = module.weight
    assert isinstance(weight, Tensor)
    if weight.numel() <= SLICE or getattr(module, "groups", 1) != 1:
        return []
    step = max(1, SLICE // (weight.numel() // len(weight)))
    return [(first, min(first + step, len(weight))) for first in range(0, len(weight), step)]


def run_in_slices(
    module: nn.Module, x: Tensor, slices: list[Rows], part: Callable[[Rows], tuple[Tensor, Tensor | None]]
) -> Tensor:
    """The module's output, from one call for each range of rows; `part` gives weight and bias of a range."""
    outputs = []
    for rows in slices:
        weight, bias = part(rows)
        if isinstance(module, nn.Linear):
            outputs.append(nn.functional.linear(x, weight, bias))
        else:
            assert isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d)
            outputs.append(module._conv_forward(x, weight, bias))
        # What the graph does not keep must be free before the next range is generated.
        del weight, bias
    channels = -1 if isinstance(module, nn.Linear) else -len(module.kernel_size) - 1  # type: ignore[arg-type]
    return torch.cat(outputs, dim=channels)
