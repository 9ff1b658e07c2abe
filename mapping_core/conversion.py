"""From plain data to attrs classes without coercion, every fault with its dotted path.

cattrs dispatches on the types; the hooks are ours, because its defaults turn ``"8"``,
``8.9`` and ``True`` into integers and report an unknown component as a missing field.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Union, get_args, get_origin

import attrs

from mapping_core.components import KINDS, Component
from mapping_core.errors import AmbiguousComponentError, ConfigError, PluginError, UnknownComponentError
from mapping_core.faults import Fault, Faults, did_you_mean, expected, got, not_among, unexpected, unknown_key

if TYPE_CHECKING:
    from mapping_core.registry import Registry

T = TypeVar("T")


def structure(data: object, cls: type[T], *, registry: Registry, path: str = "", source: str = "") -> T:
    """Return an instance of `cls` made from plain `data`, or raise one `ConfigError`.

    Components are taken from `registry`, given as instance, as name, or as table with
    ``type``. `path` is where `data` stands and `source` the file it came from, for errors.

    >>> from mapping_core import Registry, TrainerConfig
    >>> structure({"max_epochs": 3}, TrainerConfig, registry=Registry.discover()).max_epochs
    3
    >>> structure({"max_epochs": "3"}, TrainerConfig, registry=Registry.discover(), path="trainer")
    Traceback (most recent call last):
    ...
    mapping_core.errors.ConfigError: trainer.max_epochs: expected an integer, got '3' (str)
    """
    try:
        made: T = _Structurer(registry).convert(data, cls)
    except Faults as error:
        faults = list(error.below(path))
    else:
        return made
    where = f" (in {source})" if source else ""
    if len(faults) == 1:
        raise faults[0].error(faults[0].message + where, path=faults[0].path)
    listed = "; ".join(f"({i}) {fault.path}: {fault.message}" for i, fault in enumerate(faults, 1))
    raise ConfigError(f"{len(faults)} faults{where}: {listed}")


class _Structurer:
    """The hooks of one conversion, around the registry that resolves its names."""

    def __init__(self, registry: Registry) -> None:
        import cattrs  # here, so that importing mapping_core stays cheap

        self.registry = registry
        self.converter = cattrs.Converter(structure_fallback_factory=lambda _: self.instance)
        self.convert: Callable[[object, Any], Any] = self.converter.structure
        for scalar in (bool, int, float, str, Path):
            self.converter.register_structure_hook(scalar, _scalar)
        hooks: tuple[tuple[Callable[[Any], bool], Callable[[Any, Any], Any]], ...] = (
            (lambda cls: cls in (Any, object), lambda value, _: value),
            (lambda cls: get_origin(cls) is Literal, _literal),
            (lambda cls: inspect.isclass(cls) and issubclass(cls, Enum), _enum),
            (lambda cls: (get_origin(cls) or cls) in (list, tuple, Sequence), self.sequence),
            (lambda cls: (get_origin(cls) or cls) in (dict, Mapping), self.mapping),
            (lambda cls: get_origin(cls) in (Union, types.UnionType), self.union),
            (lambda cls: inspect.isclass(cls) and attrs.has(cls), self.fields),
            (lambda cls: inspect.isclass(cls) and issubclass(cls, Component), self.concrete),
            (lambda cls: cls in KINDS.values(), self.component),
        )
        for predicate, hook in hooks:
            self.converter.register_structure_hook_func(predicate, hook)

    def instance(self, value: object, cls: Any) -> object:
        """Take a type no TOML can spell (a dtype, a function) only as what it is."""
        if inspect.isclass(cls) and isinstance(value, cls):
            return value
        raise unexpected(value, cls)

    def sequence(self, value: object, cls: Any) -> object:
        arguments = get_args(cls) or (Any, ...)
        build = list if (get_origin(cls) or cls) is list else tuple
        fixed = build is tuple and arguments[-1] is not ... and get_origin(cls) is tuple
        if not isinstance(value, list | tuple):
            raise unexpected(value, cls)
        if fixed and len(value) != len(arguments):
            raise Faults(Fault("", f"expected {len(arguments)} items, got {len(value)}"))
        hints = arguments if fixed else arguments[:1] * len(value)
        return build(
            self._each((f"[{i}]", item, hint) for i, (item, hint) in enumerate(zip(value, hints, strict=True)))
        )

    def mapping(self, value: object, cls: Any) -> dict[str, object]:
        hint = (get_args(cls) or (str, Any))[1]
        if not isinstance(value, Mapping):
            raise unexpected(value, cls)
        if wrong := [key for key in value if not isinstance(key, str)]:
            raise Faults(Fault("", f"keys must be strings, got {wrong[0]!r}"))
        return dict(zip(value, self._each((key, item, hint) for key, item in value.items()), strict=True))

    def _each(self, items: Iterator[tuple[str, object, Any]]) -> list[object]:
        made: list[object] = []
        faults: list[Fault] = []
        for part, item, hint in items:
            try:
                made.append(self.convert(item, hint))
            except Faults as error:
                faults += error.below(part)
        if faults:
            raise Faults(*faults)
        return made

    def union(self, value: object, cls: Any) -> object:
        members = get_args(cls)
        for member in members:
            if get_origin(member) is Literal and _is_one_of(value, get_args(member)):
                return value
        if value is None and types.NoneType in members:
            return None
        if kind := component_kind(cls):  # a string beside it is the component's name
            return self.component(value, kind)
        if type(value) in members:
            return value
        others = [member for member in members if member is not types.NoneType]
        if len(others) == 1:
            return self.convert(value, others[0])
        for member in others:
            try:
                return self.convert(value, member)
            except Faults:
                continue
        raise unexpected(value, cls)

    def component(self, value: object, kind: type[Component]) -> Component:
        """Return a component of a kind from an instance, a name or a table with ``type``."""
        if isinstance(value, kind):
            return self.completed(value)
        if isinstance(value, Component):
            raise Faults(Fault("", f"expected a {kind.kind}, got the {value.kind} {value.name!r}"))
        if inspect.isclass(value) and issubclass(value, Component):
            raise Faults(Fault("", f"expected a {kind.kind}, got the class {value.__name__}; write {value.__name__}()"))
        if isinstance(value, str):
            value = {"type": value}
            path = ""
        elif isinstance(value, Mapping):
            path = "type"
        else:
            raise unexpected(value, kind)
        name = value.get("type")
        if not isinstance(name, str):
            names = ", ".join(self.registry.catalog(kind).names())
            found = "it is missing" if name is None else got(name)
            raise Faults(Fault("type", f"expected the name of a {kind.kind}, {found} (installed: {names or 'none'})"))
        try:
            cls = self.registry.catalog(kind).get(name)
        except (UnknownComponentError, AmbiguousComponentError) as error:
            raise Faults(Fault(path, str(error), type(error))) from error
        return self.fields({key: item for key, item in value.items() if key != "type"}, cls)

    def completed(self, component: Component) -> Component:
        """Return a component with components in the place of names in its fields: Python may give either."""
        try:
            fields = _fields(type(component))
        except PluginError:  # it says its types to a type checker alone, and was made by hand
            return component
        given = {field.alias or field.name: getattr(component, field.name) for field in fields if field.init}
        faults: list[Fault] = []
        changed: dict[str, object] = {}
        for field in fields:
            key = field.alias or field.name
            if key in given and _holds_components(field.type):
                try:
                    made = self.convert(given[key], field.type)
                except Faults as error:
                    faults += error.below(key)
                else:
                    if made != given[key]:
                        changed[key] = made
        if faults:
            raise Faults(*faults)
        return attrs.evolve(component, **changed) if changed else component

    def concrete(self, value: object, cls: type[Component]) -> Component:
        """Return a component of one class; its own ``type`` may stand in the table or not."""
        if isinstance(value, Mapping) and value.get("type", cls.name).rpartition(":")[2] == cls.name:
            value = {key: item for key, item in value.items() if key != "type"}
        return self.fields(value, cls)

    def fields(self, value: object, cls: type[T]) -> T:
        """Return an attrs instance from a table, with all that is wrong in it at once."""
        if isinstance(value, cls):
            return value
        if not isinstance(value, Mapping):
            raise unexpected(value, cls)
        fields = {field.alias or field.name: field for field in _fields(cls) if field.init}
        faults = [Fault(str(key), unknown_key(str(key), list(fields))) for key in value if key not in fields]
        given: dict[str, object] = {}
        for key, field in fields.items():
            if key in value:
                item = value[key]
            elif isinstance(field.default, str) and component_kind(field.type):
                item = field.default  # the name of the default component: look it up now
            elif field.default is not None and getattr(field.default, "factory", None) is field.type:
                item = {}  # a nested table of defaults, which may hold such names
            else:
                if field.default is attrs.NOTHING:
                    faults.append(Fault(key, f"missing; expected {expected(field.type)}"))
                continue
            try:
                given[key] = self.convert(item, field.type if field.type is not None else Any)
            except Faults as error:
                faults += error.below(key)
        if not faults:
            try:
                return cls(**given)
            except (ValueError, TypeError) as error:
                faults = [*_invalid(cls, given)] or [Fault("", _message(error))]
        else:
            faults += _invalid(cls, given)
        raise Faults(*faults)


def component_kind(hint: Any) -> type[Component] | None:
    """Return the kind of component a field of this type holds, or None."""
    return next((member for member in (hint, *get_args(hint)) if member in KINDS.values()), None)


def _holds_components(hint: Any) -> bool:
    return hint in KINDS.values() or any(map(_holds_components, get_args(hint)))


def _scalar(value: object, cls: type) -> object:
    if type(value) is cls or (cls is Path and isinstance(value, Path)):
        return value
    if cls is float and type(value) is int:
        return float(value)
    if cls is Path and type(value) is str:
        return Path(value)
    raise unexpected(value, cls)


def _is_one_of(value: object, allowed: Sequence[object]) -> bool:
    return any(value == item and type(value) is type(item) for item in allowed)  # 1 == True


def _literal(value: object, cls: Any) -> object:
    if _is_one_of(value, get_args(cls)):
        return value
    raise not_among(value, get_args(cls))


def _enum(value: object, cls: type[Enum]) -> Enum:
    if isinstance(value, cls):
        return value
    for member in cls:
        if _is_one_of(value, [member.value]):
            return member
    raise not_among(value, [member.value for member in cls])


def _fields(cls: type[Any]) -> tuple[attrs.Attribute[Any], ...]:
    try:
        fields: tuple[attrs.Attribute[Any], ...] = attrs.fields(attrs.resolve_types(cls))
    except NameError as error:
        raise PluginError(
            f"{cls.__module__}.{cls.__qualname__}: the type of a field cannot be resolved: {error}; "
            "import what its annotations name outside TYPE_CHECKING"
        ) from error
    return fields


def _invalid(cls: type[Any], given: Mapping[str, object]) -> Iterator[Fault]:
    """Run the validators one by one, so that each that fails is reported at its field."""
    probe = object.__new__(cls)
    fields = [field for field in attrs.fields(cls) if (field.alias or field.name) in given]
    for field in fields:
        object.__setattr__(probe, field.name, given[field.alias or field.name])
    for field in fields:
        if field.validator is not None and field.converter is None:
            try:
                field.validator(probe, field, given[field.alias or field.name])
            except AttributeError:  # it compares with a field that is at fault itself
                continue
            except (ValueError, TypeError) as error:
                message = _message(error).removeprefix(f"'{field.name}' ")
                hint = did_you_mean(
                    str(given[field.alias or field.name]), map(str, getattr(field.validator, "options", ()))
                )
                yield Fault(field.alias or field.name, f"{message}; {hint}" if hint else message)


def _message(error: Exception) -> str:
    # attrs' validators put more than the message into args
    return " ".join(str(error.args[0] if error.args else error).split())
