"""The layout: what parameters a target has, and what becomes of each."""

from __future__ import annotations

import hashlib
import math

import torch
from attrs import define
from torch import nn
from torch.nn.parameter import is_lazy
from torch.nn.utils.parametrize import ParametrizationList

from mapping_core.errors import TargetError
from mapping_core.target.roles import Role, RoleRules, matches_name

#: Row scale of parameters that start as a constant (norm gains, biases of norms, PReLU slopes, logit
#: scales): their initialisation has no spread to take the scale from.
CONSTANT_SCALE = 0.1

_NORMS: tuple[type[nn.Module], ...] = (
    nn.modules.batchnorm._NormBase,
    nn.LayerNorm,
    nn.GroupNorm,
    nn.RMSNorm,
)


@define(frozen=True, kw_only=True)
class ParameterSpec:
    """One parameter tensor of a target.

    `aliases` are the further names of the same tensor, when modules share it. `module` is
    the path of the module that owns it. `scale` multiplies the unit-gain output of a
    mapper: the standard deviation that the layer's own initialisation gives its weights.
    `role` says whether a latent feeds it, it trains directly, or it keeps its value.
    `fixed_row` is a row that keeps its value all the same: the padding row of an embedding.
    `owners` are the class names of the modules that own it, one for each name.
    """

    name: str
    aliases: tuple[str, ...]
    module: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    fan_in: int | None
    scale: float
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
    def starts_constant(self) -> bool:
        """Whether its layer initialises it to a constant: the gain of a norm, a slope, a scale."""
        return self.fan_in is None and self.scale == CONSTANT_SCALE

    @property
    def numel(self) -> int:
        """How many weights the tensor has."""
        return math.prod(self.shape)


@define(frozen=True)
class Layout:
    """The parameters of a target, in the order of `named_parameters()`, shared ones once.

    >>> layout = Layout.of(nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)))
    >>> [(spec.name, spec.shape, spec.fan_in) for spec in layout.mapped]
    [('0.weight', (3, 4), 4), ('0.bias', (3,), 4), ('1.weight', (3,), None), ('1.bias', (3,), None)]
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
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:32]


def _refuse_empty(kind: str, name: str, tensor: torch.Tensor) -> None:
    if is_lazy(tensor):
        raise TargetError(f"{kind} {name!r} is lazy and has no shape yet: run one batch through the target first")
    if tensor.is_meta:
        raise TargetError(f"{kind} {name!r} is on the meta device and has no values: materialise the target first")


def _spec(parameter: nn.Parameter, names: list[str], modules: dict[str, nn.Module], role: Role) -> ParameterSpec:
    name, *aliases = names
    owner, _, leaf = name.rpartition(".")
    fan_in, scale = _fan_in_and_scale(modules[owner], leaf, parameter)
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
        fan_in=fan_in,
        scale=scale,
        role=role,
        fixed_row=next((row for row in padding if isinstance(row, int)), None),
        owners=tuple(type(modules[each.rpartition(".")[0]]).__name__ for each in names),
    )


def _fan_in_and_scale(module: nn.Module, leaf: str, parameter: nn.Parameter) -> tuple[int | None, float]:
    """The fan-in of a parameter (None where it has none) and the spread of its initialisation.

    torch's layers draw from U(-b, b) with b = 1/sqrt(fan_in), whose standard deviation is
    1/sqrt(3 fan_in); their biases use the weight's fan-in. Embeddings draw from N(0, 1).
    """
    if isinstance(module, _NORMS) or _is_magnitude(module, leaf):
        return None, CONSTANT_SCALE
    if isinstance(module, nn.Embedding | nn.EmbeddingBag):
        return None, 1.0
    if isinstance(module, nn.RNNBase | nn.RNNCellBase):
        return module.hidden_size, _uniform_std(module.hidden_size)
    weight: object = parameter if parameter.ndim >= 2 else _stored(module, "weight")
    if leaf.startswith("in_proj") and (packed := _stored(module, "in_proj_weight")) is not None:
        weight = packed
    if isinstance(weight, torch.Tensor) and weight.ndim >= 2 and weight.numel() > 0:
        fan_in = weight[0].numel()
        return fan_in, _uniform_std(fan_in)
    return None, CONSTANT_SCALE


def _stored(module: nn.Module, leaf: str) -> object:
    """What a module holds under a name, or holds it in the shape of; nothing is computed.

    The attribute of a parametrized module computes, and spectral_norm's even writes to its buffers.
    """
    parametrizations = module._modules.get("parametrizations")
    if isinstance(parametrizations, nn.ModuleDict) and leaf in parametrizations:
        originals = parametrizations[leaf]._parameters
        return originals.get("original", originals.get("original1"))
    return module._parameters.get(leaf, vars(module).get(leaf))


def _is_magnitude(module: nn.Module, leaf: str) -> bool:
    """Whether a parameter is the magnitude of weight_norm, of the new kind or the old."""
    return leaf == "weight_g" or (isinstance(module, ParametrizationList) and leaf == "original0")


def _uniform_std(fan_in: int) -> float:
    return 1.0 / math.sqrt(3.0 * fan_in)
