"""Components inside components: a strategy may have a strategy of its own, and so on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import attrs

from mapping_core.components import Component

if TYPE_CHECKING:
    from mapping_core.registry import Registry


def nested(component: Component) -> dict[str, Component]:
    """Return the components in a component's fields, at any depth, by their path below it.

    >>> from attrs import define
    >>> from mapping_core import GeneratorConfig
    >>> @define(frozen=True, kw_only=True)
    ... class Inner(GeneratorConfig):
    ...     name = "inner"
    >>> @define(frozen=True, kw_only=True)
    ... class Outer(GeneratorConfig):
    ...     name = "outer"
    ...     strategy: GeneratorConfig | str | None = None
    >>> list(nested(Outer(strategy=Outer(strategy=Inner()))))
    ['strategy', 'strategy.strategy']
    """
    return dict(_below(component, ""))


def _below(value: Any, path: str) -> Iterator[tuple[str, Component]]:
    for key, item in _parts(value):
        # as faults spell a path: a.b for fields and keys, a[0] for items
        where = key if not path else f"{path}{key}" if key.startswith("[") else f"{path}.{key}"
        if isinstance(item, Component):
            yield where, item
        yield from _below(item, where)


def _parts(value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, Component):
        return [(each.alias or each.name, getattr(value, each.name)) for each in attrs.fields(type(value))]
    if isinstance(value, Mapping):
        return [(str(key), item) for key, item in value.items()]
    if isinstance(value, list | tuple):
        return [(f"[{index}]", item) for index, item in enumerate(value)]
    return []


def suppliers(components: Mapping[str, Component], registry: Registry) -> dict[str, str | None]:
    """Return who supplies each component and each one inside it, by path: ``strategy``, ``strategy.strategy``."""
    return {
        path: registry.supplier(each)
        for role, component in components.items()
        for path, each in {role: component, **{f"{role}.{at}": each for at, each in nested(component).items()}}.items()
    }


def renamed(settings: object, names: Mapping[str, str], path: str = "") -> Any:
    """Return a component's plain settings with another ``type`` for the components at the paths in `names`.

    >>> renamed({"type": "pruned", "strategy": {"type": "lrd"}}, {"strategy": "mapping-plugin-lrd:lrd"})
    {'type': 'pruned', 'strategy': {'type': 'mapping-plugin-lrd:lrd'}}
    """
    if isinstance(settings, Mapping):
        made = {key: renamed(item, names, f"{path}.{key}" if path else str(key)) for key, item in settings.items()}
        return {**made, "type": names[path]} if path in names else made
    if isinstance(settings, list):
        return [renamed(item, names, f"{path}[{index}]") for index, item in enumerate(settings)]
    return settings


def types_of(settings: object, path: str = "") -> dict[str, str]:
    """Return the ``type`` of a component's plain settings and of those inside it, by path.

    >>> types_of({"type": "pruned", "strategy": {"type": "lrd", "rank": 8}})
    {'': 'pruned', 'strategy': 'lrd'}
    """
    found: dict[str, str] = {}
    if isinstance(settings, Mapping):
        if isinstance(settings.get("type"), str):
            found[path] = settings["type"]
        for key, item in settings.items():
            found |= types_of(item, f"{path}.{key}" if path else str(key))
    elif isinstance(settings, list):
        for index, item in enumerate(settings):
            found |= types_of(item, f"{path}[{index}]")
    return found
