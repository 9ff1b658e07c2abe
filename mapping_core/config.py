"""A whole run as configuration, and the way between configuration objects and TOML."""

from __future__ import annotations

import datetime
import tomllib
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import attrs
from attrs import define, field
from attrs.validators import ge

from mapping_core.components import Component, GeneratorConfig, MapperConfig, ModulationConfig
from mapping_core.conversion import structure
from mapping_core.errors import ConfigError
from mapping_core.training.config import TrainerConfig

if TYPE_CHECKING:
    from mapping_core.registry import Registry

__all__ = ["RunConfig", "dump_toml", "load_toml", "structure", "unstructure"]

T = TypeVar("T")


@define(frozen=True, kw_only=True)
class RunConfig:
    """What `mapping train FILE.toml` reads: target, data, mapping and training of one run.

    `target` is a built-in name or ``"package.module:Name"``, called with
    `target_arguments`; `data` likewise names a function that returns the loaders
    ``(train, validation)``. `mapped`, `trained` and `frozen` are patterns, as for
    `MappingModel`. A component given by name, as the defaults are, is looked up when the
    configuration is read.
    """

    target: str
    target_arguments: dict[str, object] = field(factory=dict)
    data: str
    data_arguments: dict[str, object] = field(factory=dict)
    latent_dim: int = field(validator=ge(1))
    strategy: GeneratorConfig | str = "layerwise"
    mapper: MapperConfig | str = "srht"
    modulation: ModulationConfig | str | None = None
    mapped: tuple[str, ...] | None = None
    trained: tuple[str, ...] = ()
    frozen: tuple[str, ...] = ()
    base: str = "current"
    buffers: str = "frozen"
    lazy: bool = False
    seed: int = field(default=0, validator=ge(0))
    trainer: TrainerConfig = field(factory=TrainerConfig)


def load_toml(path: str | Path, cls: type[T], registry: Registry) -> T:
    """Return an instance of `cls` read from a TOML file."""
    try:
        data = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: is not TOML: {error}") from error
    return structure(data, cls, registry=registry, source=str(path))


def unstructure(obj: object, *, registry: Registry | None = None) -> Any:
    """Return plain data (tables, lists, scalars) from which `structure` makes an equal object.

    A component becomes ``{"type": name, **fields}``. A field that is None is left out
    where None is its default. With a `registry`, a name that two distributions supply is
    written as ``distribution:name``.

    >>> from mapping_core import TrainerConfig
    >>> unstructure(TrainerConfig(max_epochs=3))["max_epochs"]
    3
    """
    if isinstance(obj, Component):
        return {"type": _spelling(obj, registry), **_plain_fields(obj, registry)}
    if not isinstance(obj, type) and attrs.has(type(obj)):
        return _plain_fields(obj, registry)
    if isinstance(obj, Mapping):
        return {key: unstructure(item, registry=registry) for key, item in obj.items()}
    if isinstance(obj, list | tuple):
        return [unstructure(item, registry=registry) for item in obj]
    if isinstance(obj, Enum):
        return obj.value
    return str(obj) if isinstance(obj, Path) else obj


def dump_toml(obj: object, *, registry: Registry | None = None) -> str:
    """Return the TOML of a configuration object; `load_toml` reads it back."""
    import tomli_w  # here, so that importing mapping_core stays cheap

    data = unstructure(obj, registry=registry)
    if path := _unwritable(data):
        raise ConfigError("TOML cannot hold this value (None, or not a string, number, list or table)", path=path)
    return tomli_w.dumps(data)


def _spelling(component: Component, registry: Registry | None) -> str:
    if registry is None:
        return component.name
    same_name = [entry for entry in registry.catalog(component.kind) if entry.name == component.name]
    own = [entry for entry in same_name if entry.component is type(component)]
    return f"{own[0].distribution}:{component.name}" if len(same_name) > 1 and own else component.name


def _plain_fields(obj: Any, registry: Registry | None) -> dict[str, object]:
    return {
        item.alias or item.name: unstructure(getattr(obj, item.name), registry=registry)
        for item in attrs.fields(type(obj))
        if item.init and not (item.default is None and getattr(obj, item.name) is None)
    }


def _unwritable(data: object, path: str = "") -> str | None:
    """Return the path of the first value TOML has no word for."""
    if isinstance(data, dict):
        below = [(f"{path}.{key}" if path else str(key), item) for key, item in data.items()]
    elif isinstance(data, list):
        below = [(f"{path}[{i}]", item) for i, item in enumerate(data)]
    elif isinstance(data, bool | int | float | str | datetime.date | datetime.time):
        return None
    else:
        return path or "value"
    return next((found for key, item in below if (found := _unwritable(item, key))), None)
