"""Calling callbacks: the overridden methods of each event, collected once, when a trainer is made."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from typing import Any

from mapping_core.errors import CallbackError, ConfigError, MappingError
from mapping_core.interfaces.callback import Callback

EVENTS = tuple(name for name in vars(Callback) if name.startswith("on_"))


class Events:
    """`{event: bound methods}`; an event nobody listens to costs one look-up.

    >>> class Greeter(Callback):
    ...     def on_fit_start(self, trainer):
    ...         print("hello")
    >>> Events([Greeter()]).emit("on_fit_start", None)
    hello
    """

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        keys: set[str] = set()
        for callback in callbacks:
            if not isinstance(callback, Callback):
                raise ConfigError(
                    f"a callback must be a Callback, a callback component or its name, got {callback!r}",
                    path="callbacks",
                )
            if callback.state_key in keys:
                raise ConfigError(
                    f"two callbacks have the state_key {callback.state_key!r}: their saved state could not be told "
                    "apart; give one a state_key of its own",
                    path="callbacks",
                )
            keys.add(callback.state_key)
            _check_names(callback)
        self.listeners: dict[str, tuple[Callable[..., None], ...]] = {
            event: tuple(
                getattr(callback, event)
                for callback in callbacks
                if getattr(type(callback), event) is not getattr(Callback, event)
            )
            for event in EVENTS
        }

    def emit(self, event: str, *arguments: Any) -> None:
        """Call every listener of `event`; one that raises becomes a `CallbackError` with its name and the event."""
        for listener in self.listeners[event]:
            try:
                listener(*arguments)
            except MappingError:
                raise
            except Exception as error:
                owner = type(getattr(listener, "__self__", listener)).__name__
                raise CallbackError(f"callback {owner} failed in {event}: {type(error).__name__}: {error}") from error


def _check_names(callback: Callback) -> None:
    """Refuse a method that is named as an event and is none: it would never be called, and nobody would know."""
    unknown = [name for name in dir(type(callback)) if name.startswith("on_") and name not in EVENTS]
    if not unknown:
        return
    near = difflib.get_close_matches(unknown[0], EVENTS, n=1)
    raise ConfigError(
        f"{type(callback).__name__}.{unknown[0]} is no event of this trainer, and would never be called; "
        + (f"did you mean {near[0]!r}? " if near else "")
        + f"(events: {', '.join(EVENTS)})",
        path="callbacks",
    )
