"""What may be pruned."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fnmatch import fnmatchcase

from attrs import define

from mapping_core import ConfigError, Layout, ParameterSpec
from mapping_core.faults import did_you_mean

#: Layers whose rows are not output channels.
_OTHER_ROWS = ("ConvTranspose*", "Embedding*")


@define(frozen=True)
class Channels:
    """The parameters that a layer's output channels have an entry in: its weight first, then [channels] each."""

    weight: ParameterSpec
    others: tuple[ParameterSpec, ...]


def single_weights(layout: Layout, layers: Sequence[str] | None) -> tuple[ParameterSpec, ...]:
    """The parameters whose weights may be pruned one by one."""
    if layers is None:
        return tuple(spec for spec in layout.mapped if not spec.starts_constant)
    return _named(layout.mapped, layers, "parameter")


def blocks(layout: Layout, layers: Sequence[str] | None, m: int) -> tuple[ParameterSpec, ...]:
    """The weights whose rows come in blocks of `m`; a named one must."""
    found = [spec for spec in single_weights(layout, layers) if len(spec.shape) >= 2]
    fitting = tuple(spec for spec in found if math.prod(spec.shape[1:]) % m == 0)
    if layers is not None and (wrong := [spec for spec in found if spec not in fitting]):
        raise ConfigError(
            f"strategy 'pruned': the rows of {wrong[0].name!r} have {math.prod(wrong[0].shape[1:])} weights, no "
            f"multiple of m={m}: leave it out of layers"
        )
    return fitting


def channels(layout: Layout, layers: Sequence[str] | None) -> tuple[Channels, ...]:
    """The layers whose output channels may be pruned, with what goes with a channel.

    A norm that follows in the layout with as many entries is taken to act on these channels.
    """
    modules = list(layout.layers().values())
    found = []
    for index, specs in enumerate(modules):
        weight = next((spec for spec in specs if _has_channels(spec)), None)
        if weight is None:
            continue
        size = weight.shape[:1]
        behind = modules[index + 1] if index + 1 < len(modules) else ()
        norm = behind if all(spec.starts_constant and spec.shape == size for spec in behind) else ()
        found.append(Channels(weight, (*(spec for spec in specs if spec.shape == size), *norm)))
    if layers is None:
        return tuple(found[:-1])  # the last layer's channels are the network's outputs
    chosen = _named([each.weight for each in found], layers, "layer with channels")
    return tuple(each for each in found if each.weight in chosen)


def _has_channels(spec: ParameterSpec) -> bool:
    owner = spec.owners[0] if spec.owners else ""
    return (
        len(spec.shape) >= 2
        and spec.name.rpartition(".")[2] == "weight"
        and not any(fnmatchcase(owner, each) for each in _OTHER_ROWS)
    )


def _named(specs: Sequence[ParameterSpec], patterns: Sequence[str], what: str) -> tuple[ParameterSpec, ...]:
    for pattern in patterns:
        if not any(spec.matches(pattern) for spec in specs):
            hint = did_you_mean(pattern, [spec.name for spec in specs])
            raise ConfigError(f"strategy 'pruned': {pattern!r} matches no {what}" + (f"; {hint}" if hint else ""))
    return tuple(spec for spec in specs if any(map(spec.matches, patterns)))
