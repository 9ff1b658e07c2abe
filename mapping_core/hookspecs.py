"""The seven hooks through which plugins register components, one a kind.

A hook only *registers*: it takes nothing, returns classes, and is called once when a
`Registry` is made. Nothing in a training step goes through pluggy.

>>> from mapping_core import CallbackConfig, Registry, hookimpl
>>> class Quiet(CallbackConfig):
...     name = "quiet"
>>> class MyPlugin:
...     @hookimpl
...     def mapping_callbacks(self):
...         return [Quiet]
>>> Registry.of(MyPlugin()).callbacks.names()
('quiet',)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mapping_core.components import (
        CallbackConfig,
        DynamicsConfig,
        GeneratorConfig,
        LossConfig,
        MapperConfig,
        ModulationConfig,
        PhasePolicyConfig,
    )

#: pluggy's project name, and the entry-point group plugins use.
PROJECT = "mapping_core"

hookspec = pluggy.HookspecMarker(PROJECT)

#: Marks a plugin's function as the implementation of one of the hooks below.
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def mapping_mappers() -> Sequence[type[MapperConfig]]:
    """Return the mapper classes this plugin adds."""
    raise NotImplementedError


@hookspec
def mapping_generators() -> Sequence[type[GeneratorConfig]]:
    """Return the generator ("strategy") classes this plugin adds."""
    raise NotImplementedError


@hookspec
def mapping_modulations() -> Sequence[type[ModulationConfig]]:
    """Return the modulation classes this plugin adds."""
    raise NotImplementedError


@hookspec
def mapping_losses() -> Sequence[type[LossConfig]]:
    """Return the loss classes this plugin adds."""
    raise NotImplementedError


@hookspec
def mapping_phase_policies() -> Sequence[type[PhasePolicyConfig]]:
    """Return the phase policy classes this plugin adds."""
    raise NotImplementedError


@hookspec
def mapping_dynamics_models() -> Sequence[type[DynamicsConfig]]:
    """Return the dynamics model classes this plugin adds."""
    raise NotImplementedError


@hookspec
def mapping_callbacks() -> Sequence[type[CallbackConfig]]:
    """Return the callback classes this plugin adds."""
    raise NotImplementedError
