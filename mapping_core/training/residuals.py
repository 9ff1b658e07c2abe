"""How far real steps went from where they were predicted to go: kept small, and learned from."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import torch
from attrs import define, evolve
from torch import Tensor

from mapping_core.interfaces.dynamics import Proposal


@define(frozen=True, kw_only=True, eq=False)
class Residual:
    """A displacement [d] over `horizon` real steps up to `step`, beside the one that was predicted for them.

    >>> residual = Residual(step=30, horizon=5, predicted=torch.tensor([1.0, 0.0]), actual=torch.tensor([1.0, 1.0]))
    >>> residual.value
    tensor([0., 1.])
    >>> round(residual.error, 3), round(residual.cosine, 3)
    (0.707, 0.707)
    """

    step: int
    horizon: int
    predicted: Tensor
    actual: Tensor

    @property
    def value(self) -> Tensor:
        """Actual minus predicted, [d]."""
        return self.actual - self.predicted

    @property
    def error(self) -> float:
        """The residual's norm over that of the actual displacement: 0 is perfect, 1 what no prediction has."""
        return float(self.value.norm() / self.actual.norm())

    @property
    def cosine(self) -> float:
        """Of the angle between what was predicted and what happened."""
        return float(torch.nn.functional.cosine_similarity(self.predicted, self.actual, dim=0))


class ResidualStore:
    """The last `capacity` residuals, each as two float16 vectors with a float32 scale: 4 bytes a number.

    Rounding moves a number by at most a 2,048th of itself or, where it is tiny beside the vector's largest, by
    a 2^-25th of that.

    >>> store = ResidualStore(capacity=2)
    >>> for step in range(3):
    ...     store.add(Residual(step=step, horizon=1, predicted=torch.ones(4), actual=torch.full((4,), 1.0 + step)))
    >>> [residual.step for residual in store], store.bytes
    ([1, 2], 32)
    """

    def __init__(self, capacity: int = 16) -> None:
        self._kept: deque[tuple[int, int, Tensor, float, Tensor, float]] = deque(maxlen=capacity)

    def __len__(self) -> int:
        return len(self._kept)

    def __iter__(self) -> Iterator[Residual]:
        for step, horizon, predicted, predicted_scale, actual, actual_scale in self._kept:
            yield Residual(
                step=step,
                horizon=horizon,
                predicted=predicted.float() * predicted_scale,
                actual=actual.float() * actual_scale,
            )

    def add(self, residual: Residual) -> None:
        """Keep a residual; the oldest goes where there are too many. One that is not finite is left out."""
        pair = _compressed(residual.predicted), _compressed(residual.actual)
        if pair[0] is not None and pair[1] is not None:
            self._kept.append((residual.step, residual.horizon, *pair[0], *pair[1]))

    @property
    def bytes(self) -> int:
        """What the vectors take."""
        return sum(2 * (each[2].numel() + each[4].numel()) for each in self._kept)

    def state_dict(self) -> dict[str, Any]:
        """The residuals as they are kept."""
        return {"residuals": [list(each) for each in self._kept]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave."""
        self._kept = deque((tuple(each) for each in state["residuals"]), maxlen=self._kept.maxlen)


def _compressed(vector: Tensor) -> tuple[Tensor, float] | None:
    scale = float(vector.detach().abs().max()) if vector.numel() else 0.0
    if not scale < float("inf"):
        return None
    return ((vector.detach() / scale) if scale else vector.detach()).half(), scale


class Corrector:
    """Corrects proposals by what the last ones missed, where that has been shown to help.

    The corrected displacement is ``a * delta + b * horizon * m``: `m` is the mean residual of a
    step, and a and b minimise the squared error over the stored residuals, drawn to 1 and 0 by `ridge` times
    the same scale. Each new residual is first compared with what the correction would have made of its
    prediction, and learned from after that. `correct` returns a proposal as it came until the
    corrected ones had the smaller squared error, summed over the stored ones.
    """

    def __init__(self, capacity: int = 16, ridge: float = 0.1) -> None:
        self.store = ResidualStore(capacity)
        self._ridge = ridge
        self._errors: deque[tuple[float, float]] = deque(maxlen=capacity)
        self._gain, self._offset = 1.0, 0.0
        self._mean: Tensor | None = None

    @property
    def helps(self) -> bool:
        """Whether corrected predictions were nearer to what happened than those that were made."""
        return sum(corrected for _, corrected in self._errors) < sum(plain for plain, _ in self._errors)

    @property
    def improvement(self) -> float | None:
        """The part of the squared error that corrections took away, negative where they added; None before any."""
        plain = sum(plain for plain, _ in self._errors)
        return 1.0 - sum(corrected for _, corrected in self._errors) / plain if plain else None

    def correct(self, proposal: Proposal) -> Proposal:
        """The proposal, its displacement corrected if that helps; its forecast and variance are left as they are."""
        return evolve(proposal, delta=self._corrected(proposal.delta, proposal.horizon)) if self.helps else proposal

    def learn(self, residual: Residual) -> None:
        """Compare the correction with what happened, then learn from it. What is not finite is left out."""
        if not torch.isfinite(residual.value).all():
            return
        corrected = self._corrected(residual.predicted, residual.horizon)
        self._errors.append((float(residual.value.square().sum()), float((residual.actual - corrected).square().sum())))
        self.store.add(residual)
        self._fit()

    def _corrected(self, delta: Tensor, horizon: int) -> Tensor:
        if self._mean is None:
            return delta
        return self._gain * delta + (self._offset * horizon) * self._mean.to(delta)

    def _fit(self) -> None:
        """Least squares for the two numbers, in float64."""
        known = list(self.store)
        steps = sum(residual.horizon for residual in known)
        self._mean = torch.stack([residual.value for residual in known]).sum(0) / steps
        matrix, right = torch.zeros(2, 2, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
        for residual in known:
            columns = torch.stack([residual.predicted, residual.horizon * self._mean.to(residual.predicted)]).double()
            matrix += columns @ columns.T
            right += columns @ residual.value.double()
        prior = self._ridge * matrix.diagonal().clamp(min=torch.finfo(torch.float32).tiny)
        # Solved for the change from (1, 0): the prior is then one for no change.
        change = torch.linalg.solve(matrix + torch.diag(prior), right).tolist()
        self._gain, self._offset = 1.0 + change[0], change[1]

    def state_dict(self) -> dict[str, Any]:
        """All that `load_state_dict` needs to correct alike."""
        return {"store": self.store.state_dict(), "errors": [list(each) for each in self._errors]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave."""
        self.store.load_state_dict(state["store"])
        self._errors = deque(((plain, corrected) for plain, corrected in state["errors"]), maxlen=self._errors.maxlen)
        self._gain, self._offset, self._mean = 1.0, 0.0, None
        if len(self.store):
            self._fit()
