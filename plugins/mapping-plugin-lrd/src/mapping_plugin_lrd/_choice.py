"""Which weights are decomposed, and at which rank."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from mapping_core import ConfigError, ParameterSpec
from mapping_core.faults import did_you_mean


def chosen_ranks(
    specs: Iterable[ParameterSpec], rank: int | Mapping[str, int], layers: tuple[str, ...] | None
) -> dict[str, int]:
    """The rank of each weight to decompose, by name.

    Raises `ConfigError` for a pattern that matches no matrix, a rank above a weight's own,
    and a choice of nothing.
    """
    matrices = [spec for spec in specs if len(spec.shape) >= 2 and not spec.starts_constant]
    ranks = dict(rank) if isinstance(rank, Mapping) else {"*": rank}
    chosen: dict[str, int] = {}
    for spec in matrices:
        found = next((each for pattern, each in ranks.items() if spec.matches(pattern)), None)
        if found is None or (layers is not None and not any(map(spec.matches, layers))):
            continue
        rows, columns = matrix_shape(spec)
        named = layers is not None or isinstance(rank, Mapping)
        if named and found > min(rows, columns):
            raise ConfigError(
                f"strategy 'lrd': rank {found} is more than {spec.name!r}, a matrix of {rows} x {columns}, can have: "
                f"use a rank of at most {min(rows, columns)}"
            )
        if named or found * (rows + columns) < spec.numel:
            chosen[spec.name] = found
    for pattern in (*(ranks if isinstance(rank, Mapping) else ()), *(layers or ())):
        if not any(spec.matches(pattern) for spec in matrices):
            hint = did_you_mean(pattern, [spec.name for spec in matrices])
            raise ConfigError(
                f"strategy 'lrd': {pattern!r} matches no weight to decompose" + (f"; {hint}" if hint else "")
            )
    if not chosen:
        raise ConfigError(
            f"strategy 'lrd': at rank {rank} no weight becomes smaller as two factors: lower rank, or name layers"
        )
    return chosen


def matrix_shape(spec: ParameterSpec) -> tuple[int, int]:
    """A weight as a matrix: its first dimension, and all others together."""
    return spec.shape[0], math.prod(spec.shape[1:])
