"""`linear` and `ols`: displacements along a trend, with weights that depend on nothing but the times."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mapping_plugin_dynamics._windowed import WindowedModel

if TYPE_CHECKING:
    from mapping_core.contexts import DynamicsContext
    from mapping_plugin_dynamics import Ols


class LinearModel(WindowedModel):
    """``delta(h) = h (mean of the newer half - mean of the older half) / half``; a middle snapshot counts for none."""

    def weights(self, ahead: Tensor) -> Tensor:
        count = self.window.count
        half = count // 2
        velocity = torch.zeros(count, dtype=torch.float64)
        velocity[-half:] = 1.0 / half
        velocity[:half] = -1.0 / half
        return ahead[:, None] * velocity / (count - half)


class OlsModel(WindowedModel):
    """``delta(h) = p(now + h) - p(now)``, p the polynomial through the window by least squares."""

    def __init__(self, config: Ols, context: DynamicsContext) -> None:
        super().__init__(config, context)
        self._powers = torch.arange(config.degree + 1, dtype=torch.float64)

    def weights(self, ahead: Tensor) -> Tensor:
        # From the last observation on and in window lengths, where the powers stay near 1.
        length = self.window.count - 1
        times = (torch.arange(self.window.count, dtype=torch.float64) - self.window.now) / length
        at = (ahead / length)[:, None] ** self._powers - 0.0**self._powers
        weights: Tensor = at @ torch.linalg.pinv(times[:, None] ** self._powers)
        return weights
