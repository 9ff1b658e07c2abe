"""Checks of every kind: a component as a configuration."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
import tomllib
from typing import Any

import attrs

from mapping_core.components import KINDS, Component
from mapping_core.config import dump_toml, structure
from mapping_core.errors import ConfigError
from mapping_core.hookspecs import hookimpl
from mapping_core.nesting import nested
from mapping_core.registry import Registry
from mapping_core.testing.contract import Check, contract, expect


@contract('decorate the class: @define(frozen=True, kw_only=True), and give its class a name = "lower_case"')
def is_a_frozen_configuration(component: Component, world: Any) -> None:
    """A component is a frozen attrs class with keyword fields and a name, registered by its hook."""
    registry_of(component)
    cls = type(component)
    positional = [field.name for field in attrs.fields(cls) if field.init and not field.kw_only]
    expect(not positional, f"takes {', '.join(positional)} by position")
    try:
        component.name = "another"  # type: ignore[misc]
    except attrs.exceptions.FrozenInstanceError:
        pass
    else:
        del component.__dict__["name"]
        expect(False, "its attributes can be set")


@contract("move the import of torch (numpy, ...) into build(), and what needs it at import into a module of its own")
def imports_no_torch(component: Component, world: Any) -> None:
    """Importing the module of a component imports no torch, so that listing what is installed stays cheap."""
    module = type(component).__module__
    code = f"import sys; sys.path[:] = {sys.path!r}; import {module}; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)  # noqa: S603
    # by the exit status: a Python may have warnings to print as it starts, which are none of the component's
    last = done.stderr.strip().rpartition("\n")[2]
    expect(done.returncode == 0, f"a fresh Python cannot import {module}: {last}")
    expect(done.stdout.split()[-1:] == ["False"], f"import {module} imports torch")


@contract("use types that TOML has (numbers, strings, lists, tables) for fields, and converters that take them again")
def survives_toml(component: Component, world: Any) -> None:
    """Written as TOML and read again, a component is equal to itself."""
    registry = registry_of(component)
    text = dump_toml({"it": component})
    again = structure(tomllib.loads(text)["it"], KINDS[component.kind], registry=registry)
    expect(again == component, f"came back as {again!r}")


@contract("declare each setting as a field of its own; a table of free keys hides a misspelt one")
def refuses_an_unknown_setting(component: Component, world: Any) -> None:
    """A setting that a component does not have is an error that names it, never ignored."""
    registry = registry_of(component)
    table = {**tomllib.loads(dump_toml({"it": component}))["it"], "no_such_setting": 1}
    try:
        structure(table, KINDS[component.kind], registry=registry)
    except ConfigError as error:
        expect("no_such_setting" in str(error), f"the error does not name the setting: {error}")
    else:
        expect(False, "took the setting no_such_setting = 1")


@contract("keep open files, locks, lambdas and tensors out of the fields; make them in build()")
def copies_and_pickles(component: Component, world: Any) -> None:
    """A component can be copied and pickled, equal to itself, since runs start other processes."""
    expect(copy.deepcopy(component) == component, "a deep copy is not equal to it")
    again = pickle.loads(pickle.dumps(component))  # noqa: S301 - made in this line
    expect(again == component, "is not equal to itself after pickling")


def registry_of(*components: Component) -> Registry:
    """A registry of core's components, the classes of these and of what stands in their fields.

    Raises `PluginError` where a class would not load.
    """
    import mapping_core.builtin

    known = {entry.component for entry in Registry.of(mapping_core.builtin).entries}
    every = [each for component in components for each in (component, *nested(component).values())]
    classes: set[type[Component]] = {type(each) for each in every} - known
    hooks = {cls.hook: [each for each in classes if each.hook == cls.hook] for cls in classes}
    plugin = type("Checked", (), {name: staticmethod(_hook(added)) for name, added in hooks.items()})
    return Registry.of(mapping_core.builtin, *([plugin()] if hooks else []))


def _hook(added: list[type[Component]]) -> Any:
    return hookimpl(lambda: added)


#: What is checked of a component of any kind.
CHECKS: tuple[Check[Any, Any], ...] = (
    is_a_frozen_configuration,
    imports_no_torch,
    survives_toml,
    refuses_an_unknown_setting,
    copies_and_pickles,
)
