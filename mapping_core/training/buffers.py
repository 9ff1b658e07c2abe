"""Running statistics during training: kept safe from a step that is refused, and alike on all ranks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from mapping_core.model import MappingModel
from mapping_core.target.wrappers import unwrapped

if TYPE_CHECKING:
    from lightning_fabric import Fabric

#: Beyond so many numbers a model's buffers are no running statistics, and copying them each step is not free.
_MOST_NUMBERS = 1 << 22


class BufferGuard:
    """Copies of a model's persistent buffers as they were before a step."""

    def __init__(self, model: nn.Module) -> None:
        self._model = unwrapped(model)
        self._kept: dict[str, Tensor] = {}
        # Looking for them takes longer than copying them, so a model without any is asked once.
        self._none = not 0 < sum(buffer.numel() for buffer in self._present().values()) <= _MOST_NUMBERS

    def _present(self) -> dict[str, Tensor]:
        model = self._model
        if isinstance(model, MappingModel):
            return model.target.tracked.as_dict()
        state = model.state_dict(keep_vars=True)
        return {name: buffer for name, buffer in model.named_buffers() if name in state}

    def keep(self) -> None:
        """Copy them as they are now."""
        if not self._none:
            self._kept = {name: buffer.clone() for name, buffer in self._present().items()}

    def put_back(self) -> None:
        """Undo what passes since `keep` wrote to them, as far as their shapes are the same."""
        with torch.no_grad():
            for name, buffer in self._present().items():
                if name in self._kept and self._kept[name].shape == buffer.shape:
                    buffer.copy_(self._kept[name])

    def own(self, fabric: Fabric) -> dict[str, Tensor]:
        """A rank's own, where a checkpoint's weights hold a mean over several."""
        return {} if fabric.world_size == 1 else {name: each.cpu() for name, each in self._present().items()}

    def load(self, own: dict[str, Tensor]) -> None:
        """Take back what `own` gave."""
        with torch.no_grad():
            for name, buffer in self._present().items():
                if name in own:
                    buffer.copy_(own[name])

    @contextmanager
    def averaged(self, fabric: Fabric) -> Iterator[None]:
        """The mean over all ranks inside, and each rank's own afterwards."""
        own = {name: each.clone() for name, each in self.own(fabric).items()}
        self.average(fabric)
        try:
            yield
        finally:
            self.load(own)

    def average(self, fabric: Fabric) -> None:
        """Make them the mean over all ranks; counters stay."""
        if fabric.world_size > 1:
            for buffer in self._present().values():
                if buffer.is_floating_point():
                    fabric.all_reduce(buffer, reduce_op="mean")
