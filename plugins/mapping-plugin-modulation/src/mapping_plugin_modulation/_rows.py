"""Where the rows of parameters stand in one long line of them, and how a number a row meets its weights."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from attrs import define
from torch import Tensor

from mapping_core.target.layout import ParameterSpec


@define(frozen=True)
class RowLine:
    """The rows (first dimension) of parameters, one after the other; a scalar is one row."""

    starts: dict[str, int]
    shapes: dict[str, tuple[int, ...]]
    count: int

    @classmethod
    def of(cls, parameters: Sequence[ParameterSpec]) -> RowLine:
        """Line up the rows of `parameters` in their order."""
        counts = [spec.shape[0] if spec.shape else 1 for spec in parameters]
        starts = dict(zip((spec.name for spec in parameters), accumulate(counts, initial=0), strict=False))
        return cls(starts, {spec.name: spec.shape for spec in parameters}, sum(counts))

    def range_of(self, name: str, rows: tuple[int, int] | None) -> tuple[int, int]:
        """Where a parameter's rows stand, or some of them."""
        shape = self.shapes[name]
        first, last = (0, shape[0] if shape else 1) if rows is None else rows
        return self.starts[name] + first, self.starts[name] + last

    def shaped(self, numbers: Tensor, name: str) -> Tensor:
        """Numbers [..., rows] of a parameter, so that they broadcast over its weights."""
        shape = self.shapes[name]
        return numbers.reshape((*numbers.shape, *(1 for _ in shape[1:])) if shape else numbers.shape[:-1])

    def cut(self, line: Tensor, name: str, rows: tuple[int, int] | None) -> Tensor:
        """The numbers of a parameter, or of some of its rows, out of [..., count], ready to broadcast."""
        first, last = self.range_of(name, rows)
        return self.shaped(line[..., first:last], name)
