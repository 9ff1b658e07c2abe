"""Memory for generated weights, used again once nobody holds them.

A large tensor's memory comes from the system and goes back to it, and touching fresh pages takes
several times as long as writing them: `clone` against `copy_` shows it. torch has no public way to
ask whether somebody still holds a tensor's memory: a graph, a view, the user. Python has one: a tensor
made by `torch.from_numpy` keeps the array it was made from until the last of them is gone, and
an array can be referred to weakly.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary


class _Lent:
    """The memory that belongs to one base tensor, and whether it is out."""

    def __init__(self, base: Tensor) -> None:
        self._array: Any = torch.empty(base.shape, dtype=base.dtype).numpy()
        self._holder: weakref.ref[Any] | None = None

    def lend(self) -> Tensor | None:
        """A tensor in this memory; None while somebody holds the one before."""
        if self._holder is not None and self._holder() is not None:
            return None
        array = self._array[...]  # an object of its own
        self._holder = weakref.ref(array)
        return torch.from_numpy(array)


_of_base: WeakIdKeyDictionary = WeakIdKeyDictionary()
_lock = threading.Lock()


def memory_for(base: Tensor) -> Tensor:
    """An empty tensor for weights like `base`, contiguous; its memory is kept for the next as long as `base` lives.

    On a CPU alone: elsewhere torch keeps memory itself.
    """
    if base.device.type == "cpu" and type(base) is Tensor:
        with _lock:
            own: _Lent | None = _of_base.get(base)  # type: ignore[no-untyped-call]
            if own is None:
                own = _of_base[base] = _Lent(base)
            if (lent := own.lend()) is not None:
                return lent
    return torch.empty(base.shape, dtype=base.dtype, device=base.device)
