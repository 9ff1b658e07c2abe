"""Load one plugin at a time, so that a fault names its plugin and stays inside it.

A plugin loads whole or not at all: the first fault ends in a `PluginFault` that says
where it happened, and nothing of that plugin reaches the registry.
"""

from __future__ import annotations

import inspect
import re
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import redirect_stdout
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any

import attrs
import pluggy
from attrs import define
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

import mapping_core
from mapping_core import hookspecs
from mapping_core.components import KINDS, Component
from mapping_core.discovery import CORE, Source
from mapping_core.known_plugins import names_of

if TYPE_CHECKING:
    from typing import TypeGuard

#: Seconds that a plugin may take to load: each adds to the start of every command. `mapping plugins` names those above.
SLOW = 0.1

#: The hooks alone, since pluggy looks at every name of what it is given, for each plugin; a module has the fewest.
_SPECS = ModuleType("hooks")
vars(_SPECS).update({kind.hook: getattr(hookspecs, kind.hook) for kind in KINDS.values()})

_NAME = re.compile(r"[a-z][a-z0-9_]*")


@define(frozen=True, kw_only=True)
class Entry:
    """One component a plugin adds, and where it comes from."""

    kind: str
    name: str
    component: type[Component]
    distribution: str
    version: str
    plugin: str


@define(frozen=True, kw_only=True)
class LoadedPlugin:
    """A plugin that loaded: what it adds (as ``kind:name``) and the seconds it took."""

    distribution: str
    version: str
    entry_point: str
    module: str
    components: tuple[str, ...]
    seconds: float


@define(frozen=True, kw_only=True)
class PluginProblem:
    """A plugin that did not load, and why.

    `file` is the place of the fault (``path:line``) where one is known. `names` are the
    components it would have supplied (``kind:name``), as far as they are known.
    """

    distribution: str
    version: str
    entry_point: str
    module: str
    cause: str
    file: str = ""
    names: tuple[str, ...] = ()

    def __str__(self) -> str:
        place = f" ({self.file})" if self.file else ""
        return f"plugin {self.entry_point!r} of {self.distribution} {self.version}: {self.cause}{place}"


class PluginFault(Exception):
    """Why one plugin did not load; never leaves the registry, which records or raises it."""

    def __init__(self, cause: str, *, file: str = "", names: Iterable[str] = ()) -> None:
        super().__init__(cause)
        self.cause = " ".join(cause.split())
        self.file = file
        self.names = tuple(names)


def problem_of(source: Source, fault: PluginFault) -> PluginProblem:
    """Return the record of a fault, with the names known from the plugin or from its distribution."""
    return PluginProblem(
        distribution=source.distribution,
        version=source.version,
        entry_point=source.entry_point,
        module=source.module,
        cause=fault.cause,
        file=fault.file,
        names=tuple(dict.fromkeys((*fault.names, *names_of(source.distribution)))),
    )


def load(source: Source) -> tuple[LoadedPlugin, tuple[Entry, ...]]:
    """Import one plugin and collect its components, or raise `PluginFault`."""
    start = time.perf_counter()
    _check_requirements(source)
    try:
        with redirect_stdout(sys.stderr):  # what a plugin says must not stand in a command's output
            plugin = source.load()
    except (Exception, SystemExit) as error:  # a plugin that calls sys.exit() must not end the program
        raise PluginFault(_cause(error), file=_place(error, source.module)) from error
    components = tuple(_components(plugin, source))
    entries = tuple(
        Entry(
            kind=component.kind,
            name=component.name,
            component=component,
            distribution=source.distribution,
            version=source.version,
            plugin=source.entry_point,
        )
        for component in components
    )
    loaded = LoadedPlugin(
        distribution=source.distribution,
        version=source.version,
        entry_point=source.entry_point,
        module=source.module,
        components=tuple(_label(component) for component in components),
        seconds=time.perf_counter() - start,
    )
    return loaded, entries


def _check_requirements(source: Source) -> None:
    for line in source.requires:
        try:
            requirement = Requirement(line)
        except InvalidRequirement as error:
            raise PluginFault(f"its requirement {line!r} cannot be read: {error}") from error
        if canonicalize_name(requirement.name) != CORE or source.distribution == CORE:
            continue
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        if not requirement.specifier.contains(mapping_core.__version__, prereleases=True):
            raise PluginFault(
                f"needs {CORE}{requirement.specifier}, but {mapping_core.__version__} is installed: "
                f"upgrade {source.distribution} or install that {CORE}"
            )


def _components(plugin: object, source: Source) -> list[type[Component]]:
    # A manager of its own: pluggy then blames exactly this plugin, and calls nothing else.
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(_SPECS)
    found: list[type[Component]] = []
    try:
        manager.register(plugin, name=source.entry_point)
        manager.check_pending()
        callers = manager.get_hookcallers(plugin)
        if not callers:
            raise PluginFault("registers nothing: mark its mapping_* functions with @hookimpl")
        for kind in KINDS.values():
            caller = getattr(manager.hook, kind.hook)
            if caller in callers:
                results = caller()
                # pluggy drops a None, so a forgotten `return` shows as no result at all
                for result in results or [None]:
                    found.extend(_checked(result, kind, found))
    except PluginFault as fault:
        raise PluginFault(fault.cause, file=fault.file, names=map(_label, found)) from fault
    except (Exception, SystemExit) as error:
        names = map(_label, found)
        raise PluginFault(_cause(error), file=_place(error, source.module), names=names) from error
    return found


def _checked(result: object, kind: type[Component], found: Sequence[type[Component]]) -> Iterator[type[Component]]:
    """Yield the classes of one hook's result, each checked against the contract."""
    if not isinstance(result, list | tuple):
        raise PluginFault(f"{kind.hook}() must return a list of {kind.__name__} classes, got {result!r}")
    taken = {_label(component) for component in found}
    for component in result:
        where = f"{kind.hook}() returned {component!r}"
        if not _is_kind(component, kind):
            raise PluginFault(f"{where}: expected a subclass of {kind.__name__}")
        name = getattr(component, "name", None)
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise PluginFault(
                f'{where}: its name must be a class attribute like name = "my_name" '
                f"(lower-case letters, digits and _), got {name!r}"
            )
        own = vars(component)
        fields = [key for key, hint in own.get("__annotations__", {}).items() if "ClassVar" not in str(hint)]
        if fields and "__attrs_attrs__" not in own:
            raise PluginFault(
                f"{where}: it has fields ({', '.join(fields)}), so decorate it: @define(frozen=True, kw_only=True)"
            )
        if "type" in attrs.fields_dict(component):
            raise PluginFault(f"{where}: rename its field 'type', which is the key that names a component in a config")
        if _label(component) in taken:
            raise PluginFault(f"{where}: it already supplies a {kind.kind} named {name!r}")
        taken.add(_label(component))
        yield component


def _is_kind(component: Any, kind: type[Component]) -> TypeGuard[type[Component]]:
    return inspect.isclass(component) and issubclass(component, kind) and component.kind == kind.kind


def _label(component: type[Component]) -> str:
    return f"{component.kind}:{component.name}"


def _cause(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _place(error: BaseException, module: str) -> str:
    """Return ``path:line`` of the last line of the plugin's own code on the way to the error."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    top = re.split(r"[.:]", module)[0]
    place = ""
    trace: TracebackType | None = error.__traceback__
    while trace is not None:
        if str(trace.tb_frame.f_globals.get("__name__", "")).split(".")[0] == top:
            place = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
        trace = trace.tb_next
    return place
