"""Modes fitted to a short series by optimised dynamic mode decomposition.

Askham and Kutz, "Variable projection methods for an optimized dynamic mode decomposition", SIAM J. Appl. Dyn.
Syst. 2018 (arXiv 1704.02343): the eigenvalues are those that fit the series itself best, and not each
point from the one before, which noise biases. Two things are ours: no eigenvalue exceeds 1 in magnitude, and
a mode is ``(lambda^t - 1) / log(lambda)``, which is a drift where lambda is 1.
"""

from __future__ import annotations

import math

import torch
from attrs import define
from torch import Tensor

_ITERATIONS = 20
_DIFFERENCE = 1e-6  # of the numerical derivatives
_CUT = 1e-8  # singular values of a basis below this share of the largest are left out
_FASTEST = 1e-3  # a smaller eigenvalue is gone after a step anyway, and has no logarithm


@define(frozen=True)
class Modes:
    """Decays [p], at least 0, and turns [p] in radians, by interval and in float64.

    A `paired` [p] mode stands for two, one turning each way. One that is not does not turn (0), or changes its sign at
    each interval (pi).
    """

    decays: Tensor
    turns: Tensor
    paired: Tensor

    @classmethod
    def fitted(cls, series: Tensor) -> Modes:
        """Fit as many eigenvalues as an evenly spaced series [n, r] has columns."""
        count, rank = series.shape
        before = torch.cat((series[:-1], torch.ones(count - 1, 1, dtype=torch.float64)), dim=1)
        step = (torch.linalg.pinv(before, rtol=_CUT) @ series[1:])[:rank]
        found = torch.linalg.eigvals(step)
        found = found[found.imag >= 0]  # of a pair, the one that turns forward
        modes = cls(decays=-found.abs().clamp(_FASTEST, 1.0).log(), turns=found.angle().abs(), paired=found.imag > 0)
        return cls.refined(modes, series, torch.arange(count, dtype=torch.float64))

    @classmethod
    def refined(cls, modes: Modes, series: Tensor, times: Tensor) -> Modes:
        """Levenberg-Marquardt on decays and turns from `modes` on, amplitudes solved for in each step."""
        if not series.numel():
            return modes
        paired = modes.paired
        count = len(paired)
        at = torch.cat((modes.decays, modes.turns[paired]))
        damping = 1e-3
        errors, slopes = _errors(at, modes, series, times)
        for _ in range(_ITERATIONS):
            square = slopes.T @ slopes
            damped = square + damping * torch.diag(square.diagonal() + 1e-12)
            # Not lstsq, whose last bits depend on where its memory lies; a singular matrix gives what is no gain.
            tried = at - torch.linalg.solve_ex(damped, slopes.T @ errors).result
            tried[:count].clamp_(0.0, -math.log(_FASTEST))
            new_errors, new_slopes = _errors(tried, modes, series, times)
            gain = float(errors.square().sum() - new_errors.square().sum())
            if not gain > 0:
                damping *= 10
                continue
            small = gain < 1e-9 * float(errors.square().sum())
            at, errors, slopes, damping = tried, new_errors, new_slopes, damping / 10
            if small:
                break
        turns = modes.turns.clone()
        turns[paired] = at[count:]
        return cls(at[:count], turns, paired)

    @property
    def eigenvalues(self) -> Tensor:
        """Complex128 [r], with both of each pair; |lambda| <= 1."""
        found = torch.polar(torch.exp(-self.decays), self.turns)
        return torch.cat((found, found[self.paired].conj()))

    def values(self, series: Tensor, times: Tensor, at: Tensor) -> Tensor:
        """The fit to `series` [n, r] at `times` [n], followed to the times `at` [k]; [k, r]."""
        amplitudes = torch.linalg.pinv(self.basis(times), rtol=_CUT) @ series
        values: Tensor = self.basis(at) @ amplitudes
        return values

    def basis(self, times: Tensor) -> Tensor:
        """A constant, and of each mode the real part, of paired ones the imaginary part too: [n, 1 + r]."""
        return _basis(self.decays, self.turns, self.paired, times)


def _basis(decays: Tensor, turns: Tensor, paired: Tensor, times: Tensor) -> Tensor:
    """As `Modes.basis`, for decays and turns [..., p]: [..., n, 1 + r]."""
    rates = torch.complex(-decays, turns)[..., None, :]
    small = rates.abs() < 1e-7
    still = torch.where(small, torch.ones_like(rates), rates)
    t = times[:, None]
    rising = torch.where(small, t + 0 * rates, (torch.exp(still * t) - 1) / still)
    constant = torch.ones_like(rising.real[..., :1])
    return torch.cat((constant, rising.real, rising.imag[..., paired]), dim=-1)


def _errors(at: Tensor, modes: Modes, series: Tensor, times: Tensor) -> tuple[Tensor, Tensor]:
    """What the best amplitudes leave of the series [n * r], and its derivatives by `at` [q]: [n * r, q]."""
    count = len(modes.paired)
    tried = torch.cat((at[None], at + _DIFFERENCE * torch.eye(len(at), dtype=at.dtype)))
    turns = modes.turns.repeat(len(tried), 1)
    turns[:, modes.paired] = tried[:, count:]
    bases = _basis(tried[:, :count], turns, modes.paired, times)
    left = (series - bases @ (torch.linalg.pinv(bases, rtol=_CUT) @ series)).flatten(1)
    return left[0], ((left[1:] - left[0]) / _DIFFERENCE).T
