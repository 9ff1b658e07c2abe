"""What the loss will be, if it goes on as it went."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import torch

from mapping_plugin_dynamics._relaxation import relaxation_weights

_FEWEST = 8


class LossTrend:
    """The losses of the last `count` steps, and the curve that slows down through them."""

    def __init__(self, count: int) -> None:
        self._losses: deque[float] = deque(maxlen=count)

    def add(self, loss: float) -> None:
        """Take note of the loss of the step after the last one."""
        self._losses.append(loss)

    def clear(self) -> None:
        """Forget all losses."""
        self._losses.clear()

    def forecasts(self, horizons: Sequence[int]) -> list[float | None]:
        """The expected loss so many steps after the last one; None while there are fewer than eight."""
        if len(self._losses) < _FEWEST:
            return [None] * len(horizons)
        losses = torch.tensor(list(self._losses), dtype=torch.float64)
        level = losses.mean()
        times = torch.arange(len(losses), dtype=torch.float64)
        at = times[-1] + torch.tensor(horizons, dtype=torch.float64)
        weights = relaxation_weights((losses - level)[None], times, at)[0]
        return (level + weights @ (losses - level)).tolist()

    def state_dict(self) -> dict[str, Any]:
        return {"losses": list(self._losses)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._losses.clear()
        self._losses.extend(state["losses"])
