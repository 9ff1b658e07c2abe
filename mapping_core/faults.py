"""What is wrong in a configuration, in words: the place, what was expected, what is nearest."""

from __future__ import annotations

import difflib
import inspect
import reprlib
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

import attrs
from attrs import define

from mapping_core.components import KINDS
from mapping_core.errors import ConfigError

_EXPECTED: dict[Any, str] = {
    bool: "true or false",
    int: "an integer",
    float: "a number",
    str: "a string",
    Path: "a path",
    types.NoneType: "nothing",
}


@define(frozen=True)
class Fault:
    """One thing wrong in the data: where, what, and the error it is when it stands alone."""

    path: str
    message: str
    error: type[ConfigError] = ConfigError


class Faults(Exception):
    """Carries faults up to `structure`, each level adding its part of the path."""

    def __init__(self, *faults: Fault) -> None:
        super().__init__(*(fault.message for fault in faults))
        self.faults = faults

    def below(self, part: str) -> Iterator[Fault]:
        """Yield the faults as seen from the level above."""
        return (attrs.evolve(fault, path=_join(part, fault.path)) for fault in self.faults)


def expected(hint: Any) -> str:
    """Say in words what a field of this type takes.

    >>> expected(int | None), expected(dict[str, object])
    ('an integer or nothing', 'a table')
    """
    origin = get_origin(hint) or hint
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(expected(member) for member in get_args(hint)))
    if origin is Literal:
        return "one of " + ", ".join(map(repr, get_args(hint)))
    if origin in (list, tuple, Sequence):
        return "a list"
    if hint in KINDS.values():
        return f"a {hint.kind} (its name, or a table with 'type')"
    if origin in (dict, Mapping) or (inspect.isclass(hint) and attrs.has(hint)):
        return "a table"
    return _EXPECTED.get(hint) or f"a {getattr(hint, '__name__', hint)}"


def did_you_mean(word: str, allowed: Iterable[str]) -> str:
    """Return ``did you mean 'x'?``, or an empty string when nothing is near.

    >>> did_you_mean("max_epoch", ["max_epochs", "seed"])
    "did you mean 'max_epochs'?"
    >>> did_you_mean("banana", ["max_epochs", "seed"])
    ''
    """
    near = difflib.get_close_matches(word, list(allowed), n=1)
    return f"did you mean {near[0]!r}?" if near else ""


def not_among(value: object, allowed: Sequence[object]) -> Faults:
    """Return the fault of a value that is none of the allowed ones."""
    hint = did_you_mean(str(value), map(str, allowed))
    message = f"expected one of {', '.join(map(repr, allowed))}, {got(value)}"
    return Faults(Fault("", f"{message}; {hint}" if hint else message))


def unexpected(value: object, cls: Any) -> Faults:
    """Return the fault of a value that is not of the type `cls`."""
    return Faults(Fault("", f"expected {expected(cls)}, {got(value)}"))


def got(value: object) -> str:
    """Show a value, shortened, with its type: ``got '8' (str)``."""
    return f"got {reprlib.repr(value)} ({type(value).__name__})"


def unknown_key(key: str, allowed: Sequence[str]) -> str:
    """Say that a key is unknown, which ones are allowed and which is nearest."""
    hint = did_you_mean(key, allowed)
    return f"unknown key{'; ' + hint if hint else ''} (allowed: {', '.join(allowed) or 'none'})"


def _join(path: str, part: str) -> str:
    return path + part if not path or not part or part.startswith("[") else f"{path}.{part}"
