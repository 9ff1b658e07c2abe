"""`lookahead` and `ema`: jumps to slow weights and to averages, which predict nothing."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mapping_core import DynamicsModel
from mapping_core.interfaces.dynamics import Proposal
from mapping_plugin_dynamics._window import check_kept, check_shape, copied, widened

if TYPE_CHECKING:
    from mapping_core.contexts import DynamicsContext
    from mapping_plugin_dynamics import Ema, Lookahead


class _Average(DynamicsModel):
    """Keeps the last vector and a slow one, and proposes to jump from one to the other, for the shortest horizon.

    What is not finite is left out.
    """

    def __init__(self, size: int, steps: int) -> None:
        self._size = size
        self._steps = steps
        self._last: Tensor | None = None
        self._slow: Tensor | None = None
        self._seen = 0

    @abstractmethod
    def _follow(self, slow: Tensor, latent: Tensor) -> None:
        """Move the slow vector after a step, in place."""

    @abstractmethod
    def _goal(self, slow: Tensor, last: Tensor) -> Tensor:
        """Where the jump leads."""

    @torch.no_grad()
    def observe(self, latent: Tensor, loss: float, step: int) -> None:
        check_shape(latent, self._size)
        if not (math.isfinite(loss) and bool(latent.isfinite().all())):
            return
        self._last = latent.detach().clone()
        wide = widened(latent)
        if self._slow is None:
            self._slow = wide.clone()
        else:
            self._slow = self._slow.to(wide)
            self._follow(self._slow, wide)
        self._seen += 1

    @torch.no_grad()
    def propose(self, horizons: Sequence[int]) -> list[Proposal]:
        if not horizons or self._last is None or self._slow is None or self._seen <= self._steps:
            return []
        last = widened(self._last)
        delta = (self._goal(self._slow, last) - last).to(self._last.dtype)
        return [Proposal(horizon=min(horizons), delta=delta)]

    def feedback(self, accepted: Proposal | None, measured: float | None) -> None:
        if accepted is not None and self._last is not None:
            self._last += accepted.delta.to(self._last)

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self._seen, "last": copied(self._last), "slow": copied(self._slow)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        check_kept(state["last"], self._size)
        self._seen, self._last, self._slow = state["seen"], copied(state["last"]), copied(state["slow"])


class EmaModel(_Average):
    """``slow' = decay slow + (1 - decay) z``, from the first observation on; a jump leads there."""

    def __init__(self, config: Ema, context: DynamicsContext) -> None:
        super().__init__(context.size, math.ceil(1 / (1 - config.decay)))
        self._decay = config.decay

    def _follow(self, slow: Tensor, latent: Tensor) -> None:
        slow.lerp_(latent, 1 - self._decay)

    def _goal(self, slow: Tensor, last: Tensor) -> Tensor:
        return slow


class LookaheadModel(_Average):
    """The slow vector stays from jump to jump; ``slow' = slow + alpha (z - slow)`` is where a jump leads."""

    def __init__(self, config: Lookahead, context: DynamicsContext) -> None:
        super().__init__(context.size, config.k)
        self._alpha = config.alpha

    def _follow(self, slow: Tensor, latent: Tensor) -> None:
        """Stay."""

    def _goal(self, slow: Tensor, last: Tensor) -> Tensor:
        return slow.lerp(last, self._alpha)

    def feedback(self, accepted: Proposal | None, measured: float | None) -> None:
        super().feedback(accepted, measured)
        if accepted is not None and self._last is not None:
            self._slow = widened(self._last).clone()
            self._seen = 1  # k steps to the next jump
