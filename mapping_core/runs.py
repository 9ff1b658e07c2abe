"""From a `RunConfig` to a trainer that is ready to `fit`."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

import attrs
import torch
from torch import nn

from mapping_core.components import GeneratorConfig, MapperConfig, ModulationConfig
from mapping_core.config import RunConfig
from mapping_core.errors import ConfigError, MappingError
from mapping_core.faults import did_you_mean
from mapping_core.model import MappingModel
from mapping_core.reference.data import DATA
from mapping_core.reference.models import MODELS
from mapping_core.registry import Registry
from mapping_core.training.trainer import MappingTrainer


def build_trainer(config: RunConfig, registry: Registry) -> MappingTrainer:
    """Make target, loaders, mapped model and trainer as `config` says.

    The target's own initialisation and the training are seeded by ``config.seed`` (the
    latter by ``config.trainer.seed`` where it is set), so the same file gives the same run.
    """
    data = _find(config.data, DATA, path="data")
    find_target(config.target)  # named wrongly, it is an error before any data is read
    loaders = _made(data, config.data_arguments, path="data_arguments")
    if not (isinstance(loaders, tuple | list) and len(loaders) == 2):
        raise ConfigError(
            f"{config.data!r} must return (train_loader, val_loader), it returned {type(loaders).__name__}", path="data"
        )
    target = build_target(config.target, config.target_arguments, seed=config.seed)
    model = MappingModel(
        target,
        config.latent_dim,
        registry.resolve(GeneratorConfig, config.strategy, path="strategy"),
        mapper=registry.resolve(MapperConfig, config.mapper, path="mapper"),
        modulation=(
            None
            if config.modulation is None
            else registry.resolve(ModulationConfig, config.modulation, path="modulation")
        ),
        mapped=config.mapped,
        trained=config.trained,
        frozen=config.frozen,
        base=config.base,
        buffers=config.buffers,
        lazy=config.lazy,
        seed=config.seed,
        registry=registry,
    )
    options = {each.name: getattr(config.trainer, each.name) for each in attrs.fields(type(config.trainer))}
    if options["seed"] is None:
        options["seed"] = config.seed
    trainer = MappingTrainer(model, *loaders, registry=registry, **options)
    trainer.run_config = attrs.evolve(config, trainer=trainer.config)
    return trainer


def find_target(name: str) -> Callable[..., Any]:
    """What makes the target of this name: a built-in one, or ``"package.module:Name"``."""
    return _find(name, MODELS, path="target")


def build_target(name: str, arguments: Mapping[str, object], *, seed: int) -> nn.Module:
    """Make a target by its name, its own initialisation seeded by `seed`."""
    make = find_target(name)
    torch.manual_seed(seed)
    target = _made(make, arguments, path="target_arguments")
    if not isinstance(target, nn.Module):
        raise ConfigError(f"{name!r} made a {type(target).__name__}, not a torch.nn.Module", path="target")
    return target


def _find(name: str, builtin: Mapping[str, Callable[..., Any]], *, path: str) -> Callable[..., Any]:
    """A built-in by its name, or what ``package.module:Name`` names."""
    if name in builtin:
        return builtin[name]
    module_name, colon, attribute = name.partition(":")
    if not colon:
        hint = did_you_mean(name, builtin)
        raise ConfigError(
            f"{name!r} is neither built in ({', '.join(builtin)}) nor of the form 'package.module:Name'"
            + (f"; {hint}" if hint else ""),
            path=path,
        )
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        raise ConfigError(f"cannot import {module_name!r}: {type(error).__name__}: {error}", path=path) from error
    found = getattr(module, attribute, None)
    if not callable(found):
        what = "has no" if found is None else "has an uncallable"
        hint = did_you_mean(
            attribute, [key for key, value in vars(module).items() if callable(value) and key[0] != "_"]
        )
        raise ConfigError(f"{module_name!r} {what} {attribute!r}" + (f"; {hint}" if hint else ""), path=path)
    made: Callable[..., Any] = found
    return made


def _made(factory: Callable[..., Any], arguments: Mapping[str, object], *, path: str) -> Any:
    try:
        return factory(**arguments)
    except MappingError:
        raise
    except TypeError as error:
        # The usual cause is an argument that the factory does not take; its own message names it.
        raise ConfigError(str(error), path=path) from error
    except Exception as error:
        raise ConfigError(f"{type(error).__name__}: {error}", path=path) from error
