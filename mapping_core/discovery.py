"""Find what is installed under the entry-point group, without importing any of it.

Damaged metadata, of a plugin or of any other distribution, must not hide the rest.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata

from attrs import define
from packaging.utils import canonicalize_name

import mapping_core
from mapping_core.hookspecs import PROJECT

#: The distribution the built-in components belong to, and the module that registers them.
CORE = "mapping-core"
BUILTIN = "mapping_core.builtin"


@define(frozen=True, kw_only=True)
class Source:
    """A plugin before it is loaded. `load` imports it; nothing else here does."""

    distribution: str
    version: str
    entry_point: str
    module: str
    load: Callable[[], object]
    requires: tuple[str, ...] = ()


def builtin_source() -> Source:
    """Return core's own components: registered the way any plugin's are."""
    return Source(
        distribution=CORE,
        version=mapping_core.__version__,
        entry_point="builtin",
        module=BUILTIN,
        load=lambda: importlib.import_module(BUILTIN),
    )


def object_source(plugin: object) -> Source:
    """Return a plugin given as an object; its module or class stands for the distribution."""
    name = getattr(plugin, "__name__", None) or type(plugin).__name__
    module = name if inspect.ismodule(plugin) else type(plugin).__module__
    return Source(distribution=name, version="", entry_point=name, module=module, load=lambda: plugin)


def installed_sources() -> Iterator[Source]:
    """Yield what is installed under the entry-point group, sorted so that every run agrees."""
    found = [(_distribution(point), point) for point in _entry_points()]
    for (name, version, requires), point in sorted(found, key=lambda each: (each[0][0], each[1].name, each[1].value)):
        yield Source(
            distribution=name,
            version=version,
            entry_point=point.name,
            module=point.value,
            load=point.load,
            requires=requires,
        )


def _entry_points() -> Sequence[metadata.EntryPoint]:
    try:
        return tuple(metadata.entry_points(group=PROJECT))
    except Exception:  # one unreadable entry_points.txt, of any distribution, fails the whole call
        return tuple(_readable_entry_points())


def _readable_entry_points() -> Iterator[metadata.EntryPoint]:
    seen: set[str] = set()
    for dist in metadata.distributions():
        try:
            name = canonicalize_name(dist.metadata["Name"])
            points = dist.entry_points.select(group=PROJECT)
        except Exception:  # noqa: S112 - not a plugin of ours, as far as anyone can tell
            continue
        if name not in seen:  # the first one on sys.path is the one that would be imported
            seen.add(name)
            yield from points


def _distribution(point: metadata.EntryPoint) -> tuple[str, str, tuple[str, ...]]:
    """Return name, version and requirements; damaged metadata must not hide the plugin."""
    dist = point.dist
    if dist is None:
        return "unknown", "unknown", ()
    try:
        described = dist.metadata  # once: each read parses the whole file, and `version` and `requires` are reads
        requires = described.get_all("Requires-Dist") or dist.requires or ()
        return canonicalize_name(described["Name"]), described["Version"], tuple(requires)
    except Exception:
        return "unknown", "unknown", ()
