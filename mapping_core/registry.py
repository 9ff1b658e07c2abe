"""What is installed, by kind and name: made once, immutable, and asked for components.

There is no global registry and no cache: `Registry.discover()` looks at what is
installed now, `Registry.of(...)` takes plugins as objects. A plugin that breaks is a
record in `Registry.problems`, never an end of the program.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from attrs import define, field
from packaging.utils import canonicalize_name

from mapping_core.components import (
    KINDS,
    CallbackConfig,
    Component,
    DynamicsConfig,
    GeneratorConfig,
    LossConfig,
    MapperConfig,
    ModulationConfig,
    PhasePolicyConfig,
)
from mapping_core.conversion import structure
from mapping_core.discovery import Source, builtin_source, installed_sources, object_source
from mapping_core.errors import AmbiguousComponentError, PluginError, UnknownComponentError
from mapping_core.faults import did_you_mean
from mapping_core.known_plugins import distribution_for, names_of
from mapping_core.loading import Entry, LoadedPlugin, PluginFault, PluginProblem, load, problem_of

if TYPE_CHECKING:
    from typing import Self

logger = logging.getLogger("mapping_core")

C = TypeVar("C", bound=Component)


@define(frozen=True)
class Catalog(Generic[C]):
    """The components of one kind, asked for by ``name`` or ``distribution:name``."""

    kind: str
    entries: tuple[Entry, ...]
    _registry: Registry = field(repr=False, eq=False)

    def names(self) -> tuple[str, ...]:
        """Return the installed names, sorted."""
        return tuple(sorted({entry.name for entry in self.entries}))

    def get(self, name: str, *, path: str = "") -> type[C]:
        """Return the component class; `path` says in errors where the name stood."""
        distribution, _, bare = name.rpartition(":")
        found = [entry for entry in self.entries if entry.name == bare]
        if distribution:
            found = [entry for entry in found if _canonical(entry.distribution) == _canonical(distribution)]
        if not found:
            raise UnknownComponentError(self._unknown(name, bare), path=path)
        if len(found) > 1:
            raise AmbiguousComponentError(
                f"{len(found)} distributions supply a {self.kind} named {name!r}; "
                f"write {' or '.join(repr(f'{entry.distribution}:{bare}') for entry in found)}",
                path=path,
            )
        component: type[Any] = found[0].component
        return component

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def __contains__(self, name: object) -> bool:
        return any(name in (entry.name, f"{entry.distribution}:{entry.name}") for entry in self.entries)

    def _unknown(self, name: str, bare: str) -> str:
        names = self.names()
        parts = [f"no {self.kind} named {name!r} is installed (installed: {', '.join(names) or 'none'})"]
        suppliers = [entry.distribution for entry in self.entries if entry.name == bare]
        if suppliers:  # the name is right, the distribution is not
            parts.append("did you mean " + " or ".join(repr(f"{dist}:{bare}") for dist in suppliers) + "?")
        elif hint := did_you_mean(bare, names):
            parts.append(hint)
        parts += [
            f"{name!r} is a {kind}" for kind in KINDS if kind != self.kind and name in self._registry.catalog(kind)
        ]
        broken = [problem for problem in self._registry.problems if _may_supply(problem, self.kind, bare)]
        for problem in broken:
            certain = f"{self.kind}:{bare}" in problem.names
            parts.append(f"{'supplied' if certain else 'perhaps supplied'} by a plugin that did not load: {problem}")
        supplier = distribution_for(self.kind, bare)
        if supplier in self._registry.blocked:
            parts.append(
                f"{supplier} supplies it but is kept out: see MAPPING_BLOCK, MAPPING_PLUGINS, block= and allow="
            )
        elif supplier and supplier not in {problem.distribution for problem in broken}:
            upgrade = "--upgrade " if any(supplier == plugin.distribution for plugin in self._registry.plugins) else ""
            parts.append(f"pip install {upgrade}{supplier}")
        return "; ".join(parts)


@define(frozen=True, kw_only=True)
class Registry:
    """Every component that is installed, in one catalog a kind.

    >>> registry = Registry.discover()
    >>> "srht" in registry.mappers.names()
    True
    >>> registry.mappers.get("srth")
    Traceback (most recent call last):
    ...
    mapping_core.errors.UnknownComponentError: no mapper named 'srth' is installed (...); did you mean 'srht'?
    """

    entries: tuple[Entry, ...] = field(repr=False)
    plugins: tuple[LoadedPlugin, ...]
    problems: tuple[PluginProblem, ...] = ()
    #: Distributions that are installed but were kept out, by an argument or the environment.
    blocked: tuple[str, ...] = ()

    @classmethod
    def discover(cls, *, block: Iterable[str] = (), allow: Iterable[str] | None = None, strict: bool = False) -> Self:
        """Load core's components and every installed plugin.

        `block` and `allow` name distributions and act before the import. The
        environment's `MAPPING_BLOCK` and `MAPPING_PLUGINS` (comma separated, empty means
        unset) restrict further. Core's own components always load. With `strict` the
        first plugin that breaks raises `PluginError`; otherwise it is recorded in
        `problems` and logged as a warning.
        """
        blocked = {*map(_canonical, block), *(_environment("MAPPING_BLOCK") or ())}
        allowed = [set(map(_canonical, allow))] if allow is not None else []
        if (listed := _environment("MAPPING_PLUGINS")) is not None:
            allowed.append(listed)
        sources, kept_out = [builtin_source()], []
        for source in installed_sources():
            if source.distribution in blocked or any(source.distribution not in names for names in allowed):
                kept_out.append(source.distribution)
            else:
                sources.append(source)
        return cls._load(sources, strict=strict, blocked=tuple(dict.fromkeys(kept_out)))

    @classmethod
    def of(cls, *plugins: object) -> Self:
        """Return a registry of these plugins alone; one that breaks raises `PluginError`."""
        return cls._load(map(object_source, plugins), strict=True)

    @classmethod
    def _load(cls, sources: Iterable[Source], *, strict: bool, blocked: tuple[str, ...] = ()) -> Self:
        entries: dict[tuple[str, str, str], Entry] = {}
        plugins, problems = [], []
        for source in sources:
            try:
                plugin, added = load(source)
                keyed = {(entry.distribution, entry.kind, entry.name): entry for entry in added}
                for key in keyed.keys() & entries.keys():  # "distribution:name" could not tell them apart
                    raise PluginFault(f"{key[1]} {key[2]!r} is already supplied by entry point {entries[key].plugin!r}")
            except PluginFault as fault:
                problem = problem_of(source, fault)
                if strict:
                    raise PluginError(
                        f"{problem}; upgrade it, remove it, or set MAPPING_BLOCK={problem.distribution}"
                    ) from fault
                logger.warning("%s; the rest goes on without it", problem)
                problems.append(problem)
            else:
                entries |= keyed
                plugins.append(plugin)
        return cls(entries=tuple(entries.values()), plugins=tuple(plugins), problems=tuple(problems), blocked=blocked)

    @property
    def mappers(self) -> Catalog[MapperConfig]:
        """Fixed maps from a latent to weights."""
        return self.catalog(MapperConfig)

    @property
    def generators(self) -> Catalog[GeneratorConfig]:
        """Strategies: which latent feeds which parameters."""
        return self.catalog(GeneratorConfig)

    @property
    def modulations(self) -> Catalog[ModulationConfig]:
        """How a latent modulates what the mapper gives."""
        return self.catalog(ModulationConfig)

    @property
    def losses(self) -> Catalog[LossConfig]:
        """What training minimises."""
        return self.catalog(LossConfig)

    @property
    def phase_policies(self) -> Catalog[PhasePolicyConfig]:
        """Which phase of training comes next."""
        return self.catalog(PhasePolicyConfig)

    @property
    def dynamics_models(self) -> Catalog[DynamicsConfig]:
        """Models of the latent's trajectory."""
        return self.catalog(DynamicsConfig)

    @property
    def callbacks(self) -> Catalog[CallbackConfig]:
        """Observers of training."""
        return self.catalog(CallbackConfig)

    @overload
    def catalog(self, kind: type[C]) -> Catalog[C]: ...
    @overload
    def catalog(self, kind: str) -> Catalog[Component]: ...
    def catalog(self, kind: str | type[Component]) -> Catalog[Any]:
        """Return the catalog of a kind, given as ``"generator"`` or as `GeneratorConfig`."""
        name = _kind(kind).kind
        return Catalog(name, tuple(entry for entry in self.entries if entry.kind == name), self)

    @overload
    def resolve(self, kind: type[C], value: object, *, path: str = "") -> C: ...
    @overload
    def resolve(self, kind: str, value: object, *, path: str = "") -> Component: ...
    def resolve(self, kind: str | type[Component], value: object, *, path: str = "") -> Component:
        """Return the component an instance, a name, or ``{"type": name, **fields}`` stands for.

        >>> Registry.discover().resolve("mapper", "srht") == Registry.discover().resolve("mapper", {"type": "srht"})
        True
        """
        return structure(value, _kind(kind), registry=self, path=path)

    def supplier(self, component: Component) -> str | None:
        """Return ``"distribution version"`` of the plugin that supplies a component; None if none registered it."""
        for entry in self.catalog(component.kind):
            if entry.component is type(component):
                return f"{entry.distribution} {entry.version}"
        return None


def _kind(kind: str | type[Component]) -> type[Component]:
    name = kind if isinstance(kind, str) else kind.kind
    if name not in KINDS:
        raise UnknownComponentError(f"no kind of component is named {name!r} (kinds: {', '.join(KINDS)})")
    return KINDS[name]


def _may_supply(problem: PluginProblem, kind: str, name: str) -> bool:
    # what a stranger's plugin would have supplied is never wholly known
    return f"{kind}:{name}" in problem.names or not names_of(problem.distribution)


def _environment(variable: str) -> set[str] | None:
    names = {_canonical(name) for name in os.environ.get(variable, "").split(",") if name.strip()}
    return names or None


def _canonical(distribution: str) -> str:
    return str(canonicalize_name(distribution.strip()))
