"""`MappingModel`: any module, trained through a latent vector."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor, nn

from mapping_core import files
from mapping_core.components import Component, GeneratorConfig, MapperConfig, ModulationConfig
from mapping_core.contexts import GeneratorContext
from mapping_core.errors import (
    BudgetError,
    ConfigError,
    FileFormatError,
    PluginError,
    TargetError,
    UnknownComponentError,
)
from mapping_core.registry import Registry
from mapping_core.target import execution
from mapping_core.target.buffers import plan_buffers
from mapping_core.target.layout import Layout
from mapping_core.target.tensors import TensorTree

if TYPE_CHECKING:
    from mapping_core.interfaces.generator import Generator

BASES = ("current",)


class MappingModel(nn.Module):
    """A target whose weights are ``theta_0 + mapping(latent)``, of which only the latent trains.

    `target_model` is read and never written: the model keeps private copies of its weights
    (the base theta_0) and buffers, and a skeleton that executes it. `latent_dim` is the
    number of trainable numbers, exactly, whatever the `strategy`. The latent starts at 0,
    so the model starts as the target.

    `strategy`, `mapper` and `modulation` are a component, its name, or a table as in TOML.
    `buffers` says what may happen to BatchNorm statistics (`mapping_core.target.buffers`).

    Raises `TargetError`, `BudgetError` or `ConfigError` before anything is built.

    >>> target = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    >>> model = MappingModel(target, latent_dim=20, strategy="slvt")
    >>> x = torch.ones(3, 8)
    >>> torch.equal(model(x), target(x)), sum(p.numel() for p in model.parameters())
    (True, 20)
    """

    def __init__(
        self,
        target_model: nn.Module,
        latent_dim: int,
        strategy: str | GeneratorConfig | Mapping[str, Any] = "layerwise",
        *,
        mapper: str | MapperConfig | Mapping[str, Any] = "srht",
        modulation: str | ModulationConfig | Mapping[str, Any] | None = None,
        base: str = "current",
        buffers: str = "frozen",
        seed: int = 0,
        registry: Registry | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(target_model, nn.Module):
            raise TargetError(f"target_model must be a torch.nn.Module, got {type(target_model).__name__}")
        if base not in BASES:
            raise ConfigError(f"{base!r} is not one of {', '.join(BASES)}", path="base")
        registry = registry if registry is not None else Registry.discover()
        #: The components as configured, resolved from their names.
        self.strategy: GeneratorConfig = registry.resolve(GeneratorConfig, strategy, path="strategy")
        self.mapper: MapperConfig = registry.resolve(MapperConfig, mapper, path="mapper")
        self.modulation: ModulationConfig | None = (
            None if modulation is None else registry.resolve(ModulationConfig, modulation, path="modulation")
        )
        #: Distribution and version that supply each component; None for one that no plugin registered.
        self.suppliers = {role: registry.supplier(component) for role, component in self.components().items()}
        self.base = base
        self.buffer_policy = buffers
        self.seed = _checked_seed(seed)
        self.layout = Layout.of(target_model)
        self.latent_dim = _checked_budget(latent_dim, self.layout)
        plan = plan_buffers(target_model, buffers)

        self.generator = self._build_generator()
        self._latent_sizes = self.generator.latent_sizes
        self._check_generator()
        self.latent = nn.Parameter(torch.zeros(self.latent_dim))
        self._place_tensors(target_model, plan.tracked)
        self._fingerprint: str | None = None
        # Not registered: its meta parameters are neither ours to list nor to save.
        object.__setattr__(self, "skeleton", execution.skeleton_of(target_model))
        self._always_eval = plan.always_eval
        self.train(target_model.training)
        for path, module in target_model.named_modules():
            if path not in plan.always_eval:
                self.skeleton.get_submodule(path).training = module.training

    skeleton: nn.Module
    """The target without its weights: what is executed. For reading structure and modes."""

    def components(self) -> dict[str, Component]:
        """The configured components by their role: strategy, mapper and, if there is one, modulation."""
        roles = {"strategy": self.strategy, "mapper": self.mapper, "modulation": self.modulation}
        return {role: component for role, component in roles.items() if component is not None}

    def _build_generator(self) -> Generator:
        context = GeneratorContext(
            layout=self.layout,
            latent_dim=self.latent_dim,
            seed=self.seed,
            mapper=self.mapper,
            modulation=self.modulation,
        )
        return self.strategy.build(context)

    def _check_generator(self) -> None:
        """Hold a strategy to its contract: the budget is met, nothing of its own trains, all is fed once."""
        name = self.strategy.name
        total = sum(self._latent_sizes.values())
        if total != self.latent_dim:
            raise PluginError(f"strategy {name!r} uses {total:,} numbers instead of latent_dim={self.latent_dim:,}")
        if own := [key for key, _ in self.generator.named_parameters()]:
            raise PluginError(f"strategy {name!r} has trainable parameters of its own ({', '.join(own)})")
        fed = sorted(key for keys in self.generator.assignment().values() for key in keys)
        if fed != sorted(spec.name for spec in self.layout.mapped):
            raise PluginError(f"strategy {name!r} must feed every mapped parameter exactly once, it feeds {fed}")

    def _place_tensors(self, target: nn.Module, tracked: frozenset[str]) -> None:
        parameters = dict(target.named_parameters())
        mapped = {spec.name for spec in self.layout.mapped}
        buffers = dict(target.named_buffers())
        first_name = {id(buffer): name for name, buffer in buffers.items()}
        aliases = {alias: spec.name for spec in self.layout.parameters for alias in spec.aliases}
        for name, buffer in target.named_buffers(remove_duplicate=False):
            if name not in buffers:
                aliases[name] = first_name[id(buffer)]
        self._aliases = aliases
        copies = execution.copy_tensors
        self._base = TensorTree(copies({k: v for k, v in parameters.items() if k in mapped}), persistent=False)
        self._frozen = TensorTree(copies({k: v for k, v in parameters.items() if k not in mapped}), persistent=False)
        self._constants = TensorTree(copies({k: v for k, v in buffers.items() if k not in tracked}), persistent=False)
        self.tracked = TensorTree(copies({k: v for k, v in buffers.items() if k in tracked}), persistent=True)

    @property
    def latents(self) -> dict[str, Tensor]:
        """The latents by name, as views of the one trainable vector `latent`."""
        pieces = torch.split(self.latent, list(self._latent_sizes.values()), dim=-1)
        return dict(zip(self._latent_sizes, pieces, strict=True))

    def generate(self, latents: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
        """Generate all mapped parameters, by name; under other latents when they are given.

        Computed in float32 even inside autocast, then cast to each parameter's dtype.
        """
        with torch.autocast(self.latent.device.type, enabled=False):
            weights: dict[str, Tensor] = self.generator(
                self.latents if latents is None else latents, self._base.as_dict()
            )
        return weights

    def call(self, weights: Mapping[str, Tensor], *args: Any, **kwargs: Any) -> Any:
        """Run the target under `weights` (as from `generate`) and return its own output."""
        tensors = {**self._kept(), **weights}
        if self.training:
            # A module may write to its buffers in training mode; constants must not change.
            tensors.update(execution.copy_tensors(self._constants.as_dict()))
        for alias, name in self._aliases.items():
            tensors[alias] = tensors[name]
        output = execution.call(self.skeleton, tensors, args, kwargs)
        for name, buffer in self.tracked.as_dict().items():
            if tensors[name] is not buffer:  # the module put another tensor in its place
                buffer.copy_(tensors[name].detach())
        return output

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the target under the generated weights: its inputs, its output."""
        return self.call(self.generate(), *args, **kwargs)

    def train(self, mode: bool = True) -> Self:
        """Set training or evaluation mode, for the target too; frozen statistics stay in evaluation mode."""
        super().train(mode)
        skeleton: nn.Module | None = self.__dict__.get("skeleton")
        if skeleton is not None:
            skeleton.train(mode)
            for path in self._always_eval:
                skeleton.get_submodule(path).eval()
        return self

    def latent_vector(self) -> Tensor:
        """A detached copy of the whole latent, [latent_dim]."""
        return self.latent.detach().clone()

    def mapping_bytes(self) -> int:
        """Bytes of frozen state the mapping keeps in memory."""
        return sum(buffer.numel() * buffer.element_size() for buffer in self.generator.buffers())

    def base_fingerprint(self) -> str:
        """A hash of everything of the target that is given and not trained, as it was given."""
        if self._fingerprint is None:
            given = {**self._base.as_dict(), **self._frozen.as_dict(), **self._constants.as_dict()}
            self._fingerprint = files.base_fingerprint(given)
        return self._fingerprint

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        # `.half()` and the like round the base, and a file must still fit the target that was given.
        self.base_fingerprint()
        applied: Self = super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return applied

    def save(self, path: str | Path) -> None:
        """Write latent, tracked buffers and recipe to one safetensors file (`mapping_core.files`)."""
        files.write(path, self)

    @classmethod
    def load(cls, path: str | Path, target_model: nn.Module, *, registry: Registry | None = None) -> Self:
        """Read a file that `save` wrote, for the same target with the same base weights.

        Raises `FileFormatError` when the file is damaged, foreign, newer, or made for another
        target, and `UnknownComponentError` when a plugin it needs is not installed.
        """
        recipe, tensors = files.read(path)
        settings = {role: component["settings"] for role, component in recipe["components"].items()}
        layout = Layout.of(target_model)
        if layout.fingerprint() != recipe["layout"]:
            raise FileFormatError(
                f"{path}: was made for another target, with {recipe['weights']:,} mapped weights; "
                f"this {type(target_model).__name__} has {sum(spec.numel for spec in layout.mapped):,}, or other "
                "names or shapes"
            )
        try:
            model = cls(
                target_model,
                recipe["latent_dim"],
                **settings,
                base=recipe["base"],
                buffers=recipe["buffers"],
                seed=recipe["seed"],
                registry=registry,
            )
        except UnknownComponentError as error:
            supplier = recipe["components"][error.path.partition(".")[0]]["supplier"]
            raise UnknownComponentError(f"{path}: {error}; the file was written with {supplier}") from error
        if model.base_fingerprint() != recipe["base_sha256"]:
            raise FileFormatError(
                f"{path}: was made for a {type(target_model).__name__} with other base weights: load or seed the "
                "target exactly as it was when the model was built"
            )
        try:
            model.load_state_dict(tensors)
        except RuntimeError as error:
            raise FileFormatError(f"{path}: is damaged, its tensors are not those of its recipe: {error}") from error
        return model

    def export(self) -> nn.Module:
        """Return a plain module, the target's twin, with the weights filled in.

        It shares nothing with this model or the user's module; ties are ties, the
        `requires_grad` flags are the target's, buffers and modes are the present ones.
        """
        with torch.no_grad():
            tensors = {**self.generate(), **self._kept()}
        return execution.filled(self.skeleton, tensors)

    def _kept(self) -> dict[str, Tensor]:
        """All tensors of the target that no latent feeds, as they are now."""
        return {**self._frozen.as_dict(), **self.tracked.as_dict(), **self._constants.as_dict()}

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({type(self.skeleton).__name__}, latent_dim={self.latent_dim}, "
            f"strategy={self.strategy!r}, mapper={self.mapper!r})"
        )


def _checked_seed(seed: int) -> int:
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**64:
        raise ConfigError(f"must be an integer in [0, 2**64), got {seed!r}", path="seed")
    return seed


def _checked_budget(latent_dim: int, layout: Layout) -> int:
    if isinstance(latent_dim, bool) or not isinstance(latent_dim, int) or latent_dim < 1:
        raise BudgetError(f"latent_dim must be an integer of at least 1, got {latent_dim!r}")
    weights = sum(spec.numel for spec in layout.mapped)
    if latent_dim > weights:
        raise BudgetError(
            f"latent_dim={latent_dim:,} is more than the target's {weights:,} mapped weights: "
            f"a latent as large as the weights saves nothing, use latent_dim <= {weights:,}"
        )
    return latent_dim
