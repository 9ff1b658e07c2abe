"""Recording a directly trained module, for the basis of the mapper `trajectory`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from mapping_core import BudgetError, Callback, Layout, NonFiniteError
from mapping_core.target.roles import Patterns, RoleRules
from mapping_plugin_mappers._basis import write_basis

if TYPE_CHECKING:
    from mapping_core import MappingTrainer
    from mapping_core.training.history import StepRecord

_CHUNK = 1 << 16  # weights widened to float64 at once
#: Directions along which a run moved less than this share of its largest movement are noise of float32.
_SMALLEST = 1e-5


class TrajectoryRecorder(Callback):
    """Takes snapshots of a module while it trains directly, and makes of them a basis for `Trajectory`.

    Made before training, it remembers the weights as the start: a model that uses the basis
    should have them as its base. In a loop of one's own call `record()` now and then; as a
    callback of `MappingTrainer` it records after every `every` steps. Each snapshot takes 4
    bytes a weight on the CPU until `save`.

    `mapped`, `trained` and `frozen` are the patterns of the `MappingModel` that will use the basis.

    >>> layer = nn.Linear(3, 2)
    >>> recorder = TrajectoryRecorder(layer)
    >>> for _ in range(3):
    ...     with torch.no_grad():
    ...         _ = layer.weight.add_(torch.randn(2, 3))
    ...     recorder.record()
    >>> directions, spreads = recorder.directions()
    >>> directions.shape, bool((spreads[1:] <= spreads[:-1]).all())
    (torch.Size([3, 8]), True)
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        every: int = 20,
        mapped: Patterns | None = None,
        trained: Patterns = (),
        frozen: Patterns = (),
    ) -> None:
        self._module = module
        self._every = every
        self._specs = Layout.of(module, RoleRules.of(mapped, trained, frozen)).mapped
        self._start = self._weights()
        self._moves: list[Tensor] = []

    def record(self) -> None:
        """Take a snapshot; raises `NonFiniteError` when training has gone wrong."""
        move = self._weights() - self._start
        if not move.isfinite().all():
            raise NonFiniteError("TrajectoryRecorder: the module's weights are not finite: nothing to learn from them")
        self._moves.append(move)

    def on_batch_end(self, trainer: MappingTrainer, record: StepRecord) -> None:
        if trainer.step % self._every == 0:
            self.record()

    def directions(self) -> tuple[Tensor, Tensor]:
        """Orthonormal directions [k, n], and how far the snapshots are along each (root of the sum of squares) [k].

        They are the principal directions of the movement from the start, in units of the row
        scales, largest first; as many as the movement has.
        """
        if not self._moves:
            raise BudgetError("TrajectoryRecorder: nothing was recorded; call record() while the module trains")
        moves = torch.stack(self._moves)
        gram = torch.zeros(len(moves), len(moves), dtype=torch.float64)
        for part in torch.split(moves, _CHUNK, dim=1):
            gram += part.double() @ part.double().T
        squares, vectors = torch.linalg.eigh(gram)
        spreads = squares.clamp(min=0).sqrt().flip(0)
        kept = spreads > _SMALLEST * spreads[0]
        combined = vectors.flip(1)[:, kept] / spreads[kept]
        parts = [(combined.T @ part.double()).float() for part in torch.split(moves, _CHUNK, dim=1)]
        return torch.cat(parts, 1), spreads[kept].float()

    def save(self, path: str | Path, count: int) -> None:
        """Write the first `count` directions to a file for `Trajectory`; each takes 4 bytes a weight."""
        directions, spreads = self.directions()
        if not 1 <= count <= len(directions):
            raise BudgetError(
                f"TrajectoryRecorder: {len(self._moves)} snapshots gave {len(directions)} directions, {count} were "
                "asked for: record more often"
            )
        write_basis(path, directions[:count], spreads[:count])

    def _weights(self) -> Tensor:
        """All mapped weights in units of their row scales, [n] float32 on the CPU."""
        own = dict(self._module.named_parameters())
        return torch.cat([own[spec.name].detach().float().cpu().flatten() / spec.scale for spec in self._specs])
