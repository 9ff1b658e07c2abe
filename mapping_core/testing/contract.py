"""How a check speaks: what was found, what the contract is, how to meet it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import TypeVar

from mapping_core.components import Component
from mapping_core.errors import BudgetError, ConfigError, LossError, MissingPackageError, TargetError

C = TypeVar("C", bound=Component)
W = TypeVar("W")

#: A check as it is called: a component (its configuration), and the world it is tried in.
Check = Callable[[C, W], None]


class ContractError(AssertionError):
    """A component does not keep a promise of its kind; the message has the contract and the way to meet it.

    `refused` says that the component itself refused the world of the check with a typed error,
    which may be right: another world shows it.
    """

    refused = False


class Found(Exception):
    """What a check saw; the decorator makes a `ContractError` of it."""


def expect(holds: bool, found: str) -> None:
    """Say what was found where something does not hold; for the body of a check."""
    if not holds:
        raise Found(found)


def contract(meet: str) -> Callable[[Check[C, W]], Check[C, W]]:
    """Make a check of a function: its docstring is the contract, `meet` says how to meet it.

    Whatever the component raises on the way is a failure of the check too.

    >>> @contract("choose another name")
    ... def is_not_called_x(component, world):
    ...     '''No component is called x.'''
    ...     expect(component.name != "x", f"its name is {component.name!r}")
    >>> from mapping_core import MapperConfig
    >>> class X(MapperConfig):
    ...     name = "x"
    >>> is_not_called_x(X(), None)
    Traceback (most recent call last):
    ...
    mapping_core.testing.contract.ContractError: X(): its name is 'x'
      contract: No component is called x.
      to meet it: choose another name
    """

    def decorate(function: Check[C, W]) -> Check[C, W]:
        promise = " ".join(inspect.getdoc(function).split())  # type: ignore[union-attr]

        @functools.wraps(function)
        def check(component: C, world: W) -> None:
            try:
                function(component, world)
            except Found as found:
                raise _error(component, str(found), promise, meet) from None
            except Exception as error:
                raised = _error(component, f"raised {type(error).__name__}: {error}", promise, meet)
                raised.refused = _is_refusal(error)
                raise raised from error

        return check

    return decorate


def _error(component: Component, found: str, promise: str, meet: str) -> ContractError:
    return ContractError(f"{component!r}: {' '.join(found.split())}\n  contract: {promise}\n  to meet it: {meet}")


def _is_refusal(error: Exception) -> bool:
    return isinstance(error, BudgetError | ConfigError | LossError | MissingPackageError | TargetError)
