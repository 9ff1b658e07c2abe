"""All checks of a component, by its kind; and how a suite and `mapping check` run them."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any, Literal

from attrs import define

from mapping_core.components import KINDS, Component
from mapping_core.testing import common
from mapping_core.testing.contract import Check, ContractError
from mapping_core.testing.worlds import World, world_of

#: The module that has a kind's own checks.
_MODULES = {
    "mapper": "mappers",
    "generator": "generators",
    "modulation": "modulations",
    "loss": "losses",
    "phase_policy": "phase_policies",
    "dynamics_model": "dynamics_models",
    "callback": "callbacks",
}


@define(frozen=True, kw_only=True)
class Outcome:
    """How one check of one component went; `message` says why where it did not pass."""

    component: str
    check: str
    result: Literal["passed", "failed", "refused"]
    message: str = ""


def checks_of(component: type[Component]) -> tuple[Check[Any, Any], ...]:
    """The checks of a component's kind: those of every kind, and its own.

    >>> from mapping_core import MapperConfig
    >>> [check.__name__ for check in checks_of(MapperConfig)][-1]
    'compiles'
    """
    own: tuple[Check[Any, Any], ...] = importlib.import_module(
        f"mapping_core.testing.{_MODULES[component.kind]}"
    ).CHECKS
    return (*common.CHECKS, *own)


def completed(component: Component) -> Component:
    """The component with names in its fields resolved, as a trainer or a model would pass it on."""
    return common.registry_of(component).resolve(KINDS[component.kind], component)


def check_component(component: Component, world: World | None = None) -> Iterator[Outcome]:
    """Run all checks of a component in a world (by default its kind's) and yield how each went.

    A component that refuses the world with a typed error is ``"refused"``, and not tried
    further: it may need another target or strategy, which its own suite brings.
    """
    label = f"{component.kind}:{component.name}"
    world = world_of(type(component)) if world is None else world
    component = completed(component)
    for check in checks_of(type(component)):
        try:
            check(component, world)
        except ContractError as error:
            result: Literal["failed", "refused"] = "refused" if error.refused else "failed"
            yield Outcome(component=label, check=check.__name__, result=result, message=str(error))
        else:
            yield Outcome(component=label, check=check.__name__, result="passed")
