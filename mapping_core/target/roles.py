"""Roles: which parameters a latent feeds, which train directly, which keep their values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from fnmatch import fnmatchcase
from typing import Any

from attrs import define
from torch import nn

from mapping_core.errors import TargetError
from mapping_core.faults import did_you_mean

#: A glob over a parameter's name, a module's path or a module's class name; or a module type.
Pattern = str | type[nn.Module]
Patterns = Pattern | Iterable[Pattern]


class Role(Enum):
    """What becomes of a parameter."""

    MAPPED = "mapped"
    TRAINED = "trained"
    FROZEN = "frozen"


@define(frozen=True)
class RoleRules:
    """Patterns for each role; where several match, frozen wins over trained, and trained over mapped.

    A string matches a parameter's name (``"head.weight"``, ``"*.bias"``), the path of a module
    that holds it at any depth (``"layer1"``, ``"layer*.conv1"``), or the class name of the
    module that owns it (``"BatchNorm2d"``). A type matches what modules of that type own or hold.

    `mapped=None` maps whatever no other pattern takes. With patterns, only what they match
    is mapped, and the rest keeps its values.
    """

    mapped: tuple[Pattern, ...] | None
    trained: tuple[Pattern, ...]
    frozen: tuple[Pattern, ...]

    @classmethod
    def of(cls, mapped: Patterns | None = None, trained: Patterns = (), frozen: Patterns = ()) -> RoleRules:
        """Rules from single patterns or several.

        >>> RoleRules.of(trained="head").trained
        ('head',)
        """
        return cls(None if mapped is None else as_patterns(mapped), as_patterns(trained), as_patterns(frozen))

    def portable(self, module: nn.Module) -> dict[str, list[str]]:
        """The rules as strings for a file, by role, empty ones left out; a type becomes the names it matches.

        >>> RoleRules.of(frozen=nn.LayerNorm).portable(nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2)))
        {'frozen': ['1.weight', '1.bias']}
        """
        modules = dict(module.named_modules(remove_duplicate=False))
        names = [name for name, _ in module.named_parameters()]
        return {
            role.value: [
                text
                for pattern in patterns
                for text in (
                    [pattern]
                    if isinstance(pattern, str)
                    else [name for name in names if _matches(pattern, name, modules)]
                )
            ]
            for role, patterns in self._by_role()
            if patterns
        }

    def assign(self, module: nn.Module) -> dict[str, Role]:
        """The role of each parameter, by its first name; names of shared parameters count as one.

        A parameter that the user has frozen (``requires_grad=False``), that is not floating
        point, or that is empty, keeps its values whatever the patterns say. Raises
        `TargetError` for a pattern that matches nothing, or only such parameters.

        >>> net = nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2), nn.Linear(2, 2))
        >>> roles = RoleRules.of(trained=nn.LayerNorm, frozen="2").assign(net)
        >>> [role.value for role in roles.values()]
        ['mapped', 'mapped', 'trained', 'trained', 'frozen', 'frozen']
        """
        modules = dict(module.named_modules(remove_duplicate=False))
        names: dict[int, list[str]] = {}
        can_change: dict[int, bool] = {}
        for name, parameter in module.named_parameters(remove_duplicate=False):
            names.setdefault(id(parameter), []).append(name)
            can_change[id(parameter)] = (
                parameter.requires_grad and parameter.is_floating_point() and parameter.numel() > 0
            )
        roles: dict[str, Role] = {}
        used: set[Pattern] = set()
        for key, aliases in names.items():
            hits = {role: _matching(patterns, aliases, modules) for role, patterns in self._by_role()}
            if can_change[key]:
                used.update(*hits.values())
                roles[aliases[0]] = self._role(hits)
            else:
                used.update(hits[Role.FROZEN])
                roles[aliases[0]] = Role.FROZEN
        self._check_all_used(used, names, modules)
        return roles

    def _role(self, hits: dict[Role, set[Pattern]]) -> Role:
        if hits[Role.FROZEN]:
            return Role.FROZEN
        if hits[Role.TRAINED]:
            return Role.TRAINED
        return Role.MAPPED if self.mapped is None or hits[Role.MAPPED] else Role.FROZEN

    def _by_role(self) -> list[tuple[Role, tuple[Pattern, ...]]]:
        return [(Role.MAPPED, self.mapped or ()), (Role.TRAINED, self.trained), (Role.FROZEN, self.frozen)]

    def _check_all_used(self, used: set[Pattern], names: dict[int, list[str]], modules: dict[str, nn.Module]) -> None:
        for role, patterns in self._by_role():
            for pattern in patterns:
                if pattern in used:
                    continue
                if any(_matches(pattern, name, modules) for aliases in names.values() for name in aliases):
                    reason = "matches only parameters that keep their values (requires_grad=False, or not floating)"
                else:
                    reason = "matches no parameter"
                    known = [*(name for aliases in names.values() for name in aliases), *filter(None, modules)]
                    if isinstance(pattern, str) and (hint := did_you_mean(pattern, known)):
                        reason += f"; {hint}"
                shown = pattern if isinstance(pattern, str) else pattern.__name__
                raise TargetError(f"{role.value}={shown!r} {reason}")


def as_patterns(patterns: Patterns) -> tuple[Pattern, ...]:
    """Patterns as a tuple, from one or several; raises `TargetError` for anything else."""
    single = isinstance(patterns, str | type) or not isinstance(patterns, Iterable)
    found: tuple[Any, ...] = (patterns,) if single else tuple(patterns)  # type: ignore[arg-type]
    for pattern in found:
        if not isinstance(pattern, str) and not (isinstance(pattern, type) and issubclass(pattern, nn.Module)):
            raise TargetError(f"a pattern must be a string or a module type, got {pattern!r}")
    return found


def _matching(patterns: tuple[Pattern, ...], aliases: list[str], modules: dict[str, nn.Module]) -> set[Pattern]:
    return {pattern for pattern in patterns if any(_matches(pattern, name, modules) for name in aliases)}


def _matches(pattern: Pattern, name: str, modules: dict[str, nn.Module]) -> bool:
    holders = holders_of(name)
    if isinstance(pattern, str):
        return matches_name(pattern, name, type(modules[holders[0]]).__name__)
    return any(matches_module(pattern, path, modules) for path in holders)


def matches_name(pattern: str, name: str, owner: str) -> bool:
    """Whether a pattern in words matches a parameter, given the class name of the module that owns it.

    >>> [matches_name(pattern, "layer1.0.weight", "Linear") for pattern in ("layer1", "*.weight", "Linear", "layer2")]
    [True, True, True, False]
    """
    # A name is also itself where it holds characters that mean something in a glob.
    if pattern in (name, owner) or fnmatchcase(name, pattern):
        return True
    return any(_matches_path(pattern, path) for path in holders_of(name))


def holders_of(name: str) -> list[str]:
    """The paths of the modules that hold a parameter, from its owner to the root.

    >>> holders_of("layer1.0.weight")
    ['layer1.0', 'layer1', '']
    """
    parts = name.split(".")[:-1]
    return [".".join(parts[:length]) for length in range(len(parts), -1, -1)]


def matches_module(pattern: Pattern, path: str, modules: Mapping[str, nn.Module]) -> bool:
    """Whether a pattern matches a module itself: by its type, or by its path (which the root has not)."""
    if not isinstance(pattern, str):
        return isinstance(modules[path], pattern)
    return _matches_path(pattern, path)


def _matches_path(pattern: str, path: str) -> bool:
    return bool(path) and (pattern == path or fnmatchcase(path, pattern))
