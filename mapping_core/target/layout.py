"""The layout: what parameters a target has, and what becomes of each."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable

import torch
from attrs import define
from torch import nn
from torch.nn.parameter import is_lazy

from mapping_core.errors import TargetError
from mapping_core.target.initialisation import initial_spread
from mapping_core.target.roles import Role, RoleRules, matches_name

#: Row scale of parameters that start as a constant (norm gains, biases of norms, PReLU slopes, logit
#: scales): their initialisation has no spread to take the scale from.
CONSTANT_SCALE = 0.1


@define(frozen=True, kw_only=True)
class ParameterSpec:
    """One parameter tensor of a target.

    `aliases` are the further names of the same tensor, when modules share it. `module` is
    the path of the module that owns it. `scale` multiplies the unit-gain output of a
    mapper: the standard deviation that the layer's own initialisation gives its weights
    (`mapping_core.target.initialisation`). `starts_constant` says that the layer initialises it
    to a constant (the gain of a norm, a slope), so that its scale is `CONSTANT_SCALE`.
    `role` says whether a latent feeds it, it trains directly, or it keeps its value.
    `fixed_row` is a row that keeps its value all the same: the padding row of an embedding.
    `owners` are the class names of the modules that own it, one for each name.
    """

    name: str
    aliases: tuple[str, ...]
    module: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    scale: float
    starts_constant: bool
    role: Role
    fixed_row: int | None = None
    owners: tuple[str, ...] = ()

    def matches(self, pattern: str) -> bool:
        """Whether a pattern (`mapping_core.target.roles`) means it: by name, holder's path, or owner's class name."""
        owners = self.owners or ("",) * (1 + len(self.aliases))
        return any(
            matches_name(pattern, name, owner) for name, owner in zip((self.name, *self.aliases), owners, strict=True)
        )

    @property
    def numel(self) -> int:
        """How many weights the tensor has."""
        return math.prod(self.shape)


@define(frozen=True)
class Layout:
    """The parameters of a target, in the order of `named_parameters()`, shared ones once.

    >>> layout = Layout.of(nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)))
    >>> [(spec.name, spec.shape, round(spec.scale, 3)) for spec in layout.mapped]
    [('0.weight', (3, 4), 0.289), ('0.bias', (3,), 0.289), ('1.weight', (3,), 0.1), ('1.bias', (3,), 0.1)]
    """

    parameters: tuple[ParameterSpec, ...]

    @classmethod
    def of(cls, module: nn.Module, rules: RoleRules | None = None) -> Layout:
        """Read a module's layout; without `rules`, floating-point parameters that require a gradient are mapped.

        Raises `TargetError` when there is nothing to map, when a rule matches nothing, or
        when a parameter has no values yet (lazy modules, the meta device).
        """
        modules = dict(module.named_modules(remove_duplicate=False))
        names: dict[int, list[str]] = {}
        tensors: dict[int, nn.Parameter] = {}
        for name, parameter in module.named_parameters(remove_duplicate=False):
            names.setdefault(id(parameter), []).append(name)
            tensors[id(parameter)] = parameter
        for key, parameter in tensors.items():
            _refuse_empty("parameter", names[key][0], parameter)
        for name, buffer in module.named_buffers():
            _refuse_empty("buffer", name, buffer)
        roles = (RoleRules.of() if rules is None else rules).assign(module)
        specs = tuple(_spec(tensors[key], names[key], modules, roles[names[key][0]]) for key in names)
        if not any(spec.role is Role.MAPPED for spec in specs):
            if any(spec.role is Role.TRAINED for spec in specs):
                raise TargetError(f"the patterns of trained= leave nothing of {type(module).__name__} to map")
            raise TargetError(
                f"{type(module).__name__} has no parameter to map: it needs at least one floating-point "
                "parameter with requires_grad=True that frozen= does not match"
            )
        return cls(specs)

    @property
    def mapped(self) -> tuple[ParameterSpec, ...]:
        """The parameters a latent feeds."""
        return self._of(Role.MAPPED)

    @property
    def trained(self) -> tuple[ParameterSpec, ...]:
        """The parameters that train directly."""
        return self._of(Role.TRAINED)

    @property
    def frozen(self) -> tuple[ParameterSpec, ...]:
        """The parameters that keep their values."""
        return self._of(Role.FROZEN)

    def _of(self, role: Role) -> tuple[ParameterSpec, ...]:
        return tuple(spec for spec in self.parameters if spec.role is role)

    def layers(self) -> dict[str, tuple[ParameterSpec, ...]]:
        """The mapped parameters by the module that owns them, in order."""
        groups: dict[str, list[ParameterSpec]] = {}
        for spec in self.mapped:
            groups.setdefault(spec.module, []).append(spec)
        return {module: tuple(specs) for module, specs in groups.items()}

    def fingerprint(self) -> str:
        """A hash of names, shapes, dtypes, ties and roles: equal for targets of one architecture."""
        lines = (
            f"{spec.name}|{'|'.join(spec.aliases)}|{spec.shape}|{spec.dtype}|{spec.role.value}"
            for spec in self.parameters
        )
        return _digest(lines)

    def scale_fingerprint(self) -> str:
        """A hash of the scales of the mapped parameters: with others, a latent means other weights."""
        return _digest(f"{spec.scale:.9g}" for spec in self.mapped)


def _digest(lines: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:32]


def _refuse_empty(kind: str, name: str, tensor: torch.Tensor) -> None:
    if is_lazy(tensor):
        raise TargetError(f"{kind} {name!r} is lazy and has no shape yet: run one batch through the target first")
    if tensor.is_meta:
        raise TargetError(f"{kind} {name!r} is on the meta device and has no values: materialise the target first")


def _spec(parameter: nn.Parameter, names: list[str], modules: dict[str, nn.Module], role: Role) -> ParameterSpec:
    name, *aliases = names
    owner = name.rpartition(".")[0]
    spread = initial_spread(modules, name, parameter)
    padding = [
        modules[each.rpartition(".")[0]].padding_idx
        for each in names
        if isinstance(modules[each.rpartition(".")[0]], nn.Embedding | nn.EmbeddingBag)
    ]
    return ParameterSpec(
        name=name,
        aliases=tuple(aliases),
        module=owner,
        shape=tuple(parameter.shape),
        dtype=parameter.dtype,
        scale=CONSTANT_SCALE if spread is None else spread,
        starts_constant=spread is None,
        role=role,
        fixed_row=next((row for row in padding if isinstance(row, int)), None),
        owners=tuple(type(modules[each.rpartition(".")[0]]).__name__ for each in names),
    )
