"""What trains, as one vector: read, and moved."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class Trajectory:
    """A model's trained parameters as one vector [size], in their order.

    The latent of a mapped model; all weights of any other. Reading copies, writing leaves the tensors in place.

    >>> import torch
    >>> weights = torch.zeros(2), torch.zeros(1)
    >>> trajectory = Trajectory(weights)
    >>> trajectory.write(torch.tensor([1.0, 2.0, 3.0]))
    >>> weights[1].item(), trajectory.read().tolist()
    (3.0, [1.0, 2.0, 3.0])
    """

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self._parameters = list(parameters)
        self._sizes = [parameter.numel() for parameter in self._parameters]
        self.size = sum(self._sizes)

    @torch.no_grad()
    def read(self) -> Tensor:
        """A copy of where it is."""
        return torch.cat([parameter.detach().reshape(-1) for parameter in self._parameters])

    @torch.no_grad()
    def write(self, vector: Tensor) -> None:
        """Go to `vector`."""
        for parameter, piece in zip(self._parameters, torch.split(vector, self._sizes), strict=True):
            parameter.copy_(piece.view_as(parameter))
