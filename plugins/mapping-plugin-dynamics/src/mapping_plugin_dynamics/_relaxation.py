"""Curves that slow down: ``a + b tau (1 - exp(-t / tau))``, averaged over time constants.

A line is the curve of an infinite `tau`. Which `tau` a series has, a window seldom tells; so all
of a grid are kept, each weighted with its likelihood under Gaussian noise (Bayesian model averaging
with flat priors). Each curve is linear in the series, so all here are weights on the series' points.
"""

from __future__ import annotations

import torch
from torch import Tensor

#: Inverse time constants, in units of one over the window's length; 0 is the line.
_RATES = (0.0, *(2.0 ** (power / 2) for power in range(-4, 7)))


def relaxation_weights(series: Tensor, times: Tensor, at: Tensor) -> Tensor:
    """Weights [m, k, n] that give the value of m curves at k times from the n points of their series [m, n].

    `times` [n] and `at` [k] are in any unit, `times` from 0 on; everything is float64.

    >>> times = torch.arange(10, dtype=torch.float64)
    >>> weights = relaxation_weights(2 * times[None], times, torch.tensor([20.0]).double())
    >>> round(float(weights[0, 0] @ (2 * times)), 4)
    40.0
    """
    bases = torch.stack([_basis(rate, times, times[-1]) for rate in _RATES])  # [r, n, 2]
    inverse = torch.linalg.pinv(bases)  # [r, 2, n]
    errors = (series[:, None] - torch.einsum("rnp,rpk,mk->mrn", bases, inverse, series)).square().sum(-1)  # [m, r]
    # Below float32's rounding of the series, one fit is as good as another.
    floor = 1e-13 * series.square().sum(-1, keepdim=True) + torch.finfo(torch.float64).tiny
    likelihood = torch.softmax(-0.5 * (len(times) - 2) * torch.log(errors + floor), dim=-1)
    ahead = torch.stack([_basis(rate, at, times[-1]) for rate in _RATES])  # [r, k, 2]
    return torch.einsum("mr,rkp,rpn->mkn", likelihood, ahead, inverse)


def _basis(rate: float, times: Tensor, length: Tensor) -> Tensor:
    """The constant and the rising part [n, 2], in units of the window's length."""
    x = times / length
    rising = x if rate == 0.0 else -torch.expm1(-rate * x) / rate
    return torch.stack((torch.ones_like(x), rising), dim=-1)
