"""Building a component, so that one that fails is named with where it comes from."""

from __future__ import annotations

import traceback
from importlib import metadata
from typing import Any

from mapping_core.components import Component
from mapping_core.errors import MappingError, PluginError


def built(component: Component, context: Any) -> Any:
    """Return what `component.build(context)` returns.

    An error that is no `MappingError` becomes a `PluginError` with the component, its
    distribution, the cause and the line: it is a fault of the plugin, not of what was asked.
    """
    try:
        return component.build(context)
    except MappingError:
        raise
    except Exception as error:
        module = type(component).__module__
        last = traceback.extract_tb(error.__traceback__)[-1]
        raise PluginError(
            f"{component.kind} {component.name!r} of {supplier_of(module)} failed in build: "
            f"{type(error).__name__}: {error} ({last.filename}:{last.lineno})"
        ) from error


def supplier_of(module: str) -> str:
    """The distribution and version that a module was installed with; the module itself where none says so.

    >>> supplier_of("pluggy.hooks").split()[0], supplier_of("nobody.has.this")
    ('pluggy', 'module nobody.has.this')
    """
    names = metadata.packages_distributions().get(module.partition(".")[0], [])
    return f"{names[0]} {metadata.version(names[0])}" if names else f"module {module}"
