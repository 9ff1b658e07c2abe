"""`MappingModel`: any module, trained through a latent vector."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from mapping_core import files
from mapping_core.building import built
from mapping_core.checks import check_generator, checked_seed, latent_budget
from mapping_core.components import Component, GeneratorConfig, MapperConfig, ModulationConfig
from mapping_core.contexts import GeneratorContext
from mapping_core.errors import BudgetError, ConfigError
from mapping_core.foldings import Folding, Foldings, foldings_in
from mapping_core.nesting import suppliers
from mapping_core.random import RandomStream
from mapping_core.registry import Registry
from mapping_core.target.base import BASES
from mapping_core.target.inference import WeightCache, is_transformed
from mapping_core.target.layout import Layout
from mapping_core.target.recalibration import recalibrate
from mapping_core.target.roles import Patterns, RoleRules, as_patterns
from mapping_core.target.target import Target
from mapping_core.target.tensors import TensorTree, UnregisteredBuffers
from mapping_core.target.wrappers import plain_target, unprefixed

if TYPE_CHECKING:
    from mapping_core.interfaces.generator import Generator

_START = 0x73746172  # the purpose of the draw of the first latent, where it does not start at 0


class MappingModel(nn.Module):
    """A target whose weights are ``theta_0 + mapping(latent)``, of which only the latent trains.

    `target_model` is read and never written: the model keeps private copies of its weights
    and buffers, and a skeleton that executes it. `latent_dim` is the number of trainable
    numbers, exactly, whatever the `strategy`. The latent starts at 0, so the model starts
    as the target.

    `strategy`, `mapper` and `modulation` are a component, its name, or a table as in TOML.

    `mapped`, `trained` and `frozen` are patterns over parameter names or module types
    (`mapping_core.target.roles`): what a latent feeds, what trains directly (and counts in
    `latent_dim`), what keeps its values. By default all floating-point parameters that
    require a gradient are mapped, or those that the strategy chooses.

    `base` says what theta_0 is (`mapping_core.target.base`); `share_base=True` uses the
    target's own tensors instead of copies, for very large models: do not change them then.
    `buffers` says what may happen to BatchNorm statistics (`mapping_core.target.buffers`).
    `lazy=True` generates weights module by module, for peak memory
    (`mapping_core.target.lazy`); patterns name modules to be taken as one unit.

    Raises `TargetError`, `BudgetError` or `ConfigError` before anything is built.

    >>> target = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    >>> model = MappingModel(target, latent_dim=20, strategy="slvt")
    >>> x = torch.ones(3, 8)
    >>> torch.equal(model(x), target(x)), sum(p.numel() for p in model.parameters())
    (True, 20)
    """

    @torch.inference_mode(False)  # tensors made in inference mode could never train
    def __init__(
        self,
        target_model: nn.Module,
        latent_dim: int,
        strategy: str | GeneratorConfig | Mapping[str, Any] = "layerwise",
        *,
        mapper: str | MapperConfig | Mapping[str, Any] = "srht",
        modulation: str | ModulationConfig | Mapping[str, Any] | None = None,
        mapped: Patterns | None = None,
        trained: Patterns = (),
        frozen: Patterns = (),
        base: str = "current",
        share_base: bool = False,
        buffers: str = "frozen",
        lazy: bool | Patterns = False,
        seed: int = 0,
        registry: Registry | None = None,
    ) -> None:
        super().__init__()
        target_model = plain_target(target_model)
        if base not in BASES:
            raise ConfigError(f"{base!r} is not one of {', '.join(BASES)}", path="base")
        registry = registry if registry is not None else Registry.discover()
        #: The components as configured, resolved from their names.
        self.strategy: GeneratorConfig = registry.resolve(GeneratorConfig, strategy, path="strategy")
        self.mapper: MapperConfig = registry.resolve(MapperConfig, mapper, path="mapper")
        self.modulation: ModulationConfig | None = (
            None if modulation is None else registry.resolve(ModulationConfig, modulation, path="modulation")
        )
        #: Distribution and version that supply each component, those inside components too, by path;
        #: None for one that no plugin registered.
        self.suppliers = suppliers(self.components(), registry)
        self.base = base
        self.buffer_policy = buffers
        self.lazy = lazy is not False
        self.seed = checked_seed(seed)
        rules = RoleRules.of(self._mapped_by(mapped), trained, frozen)
        self.layout = Layout.of(target_model, rules)
        #: The role patterns in a form that a file can hold.
        self.roles = rules.portable(target_model)
        budget = latent_budget(latent_dim, self.layout)
        self.latent_dim = int(latent_dim)
        self.generator = self._build_generator(budget, self.seed, base)
        self._latent_sizes = self.generator.latent_sizes
        check_generator(self.generator, name=self.strategy.name, layout=self.layout, budget=budget)
        # Drawn again from the seed by whoever needs them: neither saved nor sent to other ranks.
        self._tables = UnregisteredBuffers(self.generator)
        self._has_generator_state = bool(self.generator.state_dict())
        #: What is kept of the user's module, and runs it.
        self.target = Target(
            target_model,
            self.layout,
            base=base,
            seed=self.seed,
            buffers=buffers,
            share_base=share_base,
            units=() if isinstance(lazy, bool) else as_patterns(lazy),
        )
        start = (
            RandomStream(self.seed, purpose=_START).normal(budget).float() if base == "zero" else torch.zeros(budget)
        )
        self.latent = nn.Parameter(start)
        #: What became a part of the base, by `rebase`.
        self.foldings = Foldings()
        #: The seed of the mapping in use: `seed`, until a `rebase`.
        self.mapping_seed = self.seed
        self._cache = WeightCache()
        self.to(next(iter(self.target.base.as_dict().values())).device)
        self.training = target_model.training

    def components(self) -> dict[str, Component]:
        """The configured components by their role: strategy, mapper and, if there is one, modulation."""
        roles = {"strategy": self.strategy, "mapper": self.mapper, "modulation": self.modulation}
        return {role: component for role, component in roles.items() if component is not None}

    def _mapped_by(self, mapped: Patterns | None) -> Patterns | None:
        """The patterns of what is mapped: the strategy's own ones, or those that were asked for."""
        chosen = self.strategy.chosen()
        if chosen is None or mapped is None or as_patterns(mapped) == chosen:
            return mapped if chosen is None else chosen
        raise ConfigError(
            f"strategy {self.strategy.name!r} maps {', '.join(chosen)} by itself: leave mapped= out", path="mapped"
        )

    def _build_generator(self, budget: int, seed: int, base: str) -> Generator:
        context = GeneratorContext(
            layout=self.layout,
            latent_dim=budget,
            seed=seed,
            mapper=self.mapper,
            modulation=self.modulation,
            base=base,
        )
        generator: Generator = built(self.strategy, context)
        return generator

    @property
    def skeleton(self) -> nn.Module:
        """The target without its weights: what is executed. For reading structure and modes."""
        return self.target.skeleton

    @property
    def latents(self) -> dict[str, Tensor]:
        """The latents by name, as views of the one trainable vector `latent`."""
        return self._split(self.latent)

    def _split(self, latent: Tensor) -> dict[str, Tensor]:
        pieces = torch.split(latent, list(self._latent_sizes.values()), dim=-1)
        return dict(zip(self._latent_sizes, pieces, strict=True))

    def take_latents(self, latents: Mapping[str, Tensor]) -> None:
        """Take over latents by name, as `latents` gives them."""
        with torch.no_grad():
            self.latent.copy_(torch.cat([latents[name] for name in self._latent_sizes]))

    def generate_weights(self, latents: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
        """Generate all mapped parameters, by name; under other latents when they are given.

        Computed in float32 even inside autocast, then cast to each parameter's dtype.
        """
        with torch.autocast(self.latent.device.type, enabled=False):
            weights: dict[str, Tensor] = self.generator(
                self.latents if latents is None else latents, self.target.base.as_dict()
            )
        return weights

    def _generate_some(
        self, latents: Mapping[str, Tensor], names: frozenset[str], rows: tuple[int, int] | None
    ) -> dict[str, Tensor]:
        with torch.autocast(self.latent.device.type, enabled=False):
            return self.generator.generate_some(latents, self.target.base.as_dict(), names, rows)

    def call(self, weights: Mapping[str, Tensor], *args: Any, **kwargs: Any) -> Any:
        """Run the target under `weights` (as from `generate_weights`) and return its own output."""
        return self.target.run(weights, args, kwargs)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the target under the generated weights: its inputs, its output.

        In evaluation mode without a gradient, weights are generated once and kept until the
        latent changes.
        """
        if self.lazy and not torch.compiler.is_compiling() and not is_transformed():
            return self.target.run_lazily(self._generate_some, self.latents, args, kwargs)
        if self.training or torch.compiler.is_compiling() or self._is_differentiated():
            return self.target.run(self.generate_weights(), args, kwargs)
        versions = self.target.base_versions() + self._generator_versions()
        weights = self._cache.get(self.latent, versions, self.generate_weights)
        return self.target.run(weights, args, kwargs)

    def _generator_versions(self) -> tuple[int, ...]:
        """The version counters of the generator's state, such as masks; empty where it has none."""
        if not self._has_generator_state:
            return ()
        return tuple(buffer._version for buffer in self.generator.buffers() if not buffer.is_inference())

    def _is_differentiated(self) -> bool:
        """Whether weights made now may carry a gradient, a tangent, or the batch of a `torch.func` transform."""
        return (
            (torch.is_grad_enabled() and self.latent.requires_grad)
            or is_transformed()
            or forward_ad.unpack_dual(self.latent).tangent is not None  # type: ignore[no-untyped-call]
        )

    def forward_with(self, vector: Tensor, *args: Any, **kwargs: Any) -> Any:
        """Run the target under another latent vector [latent_dim], as from `latent_vector`; differentiable in it.

        The way to many models at once: ``torch.func.vmap(model.forward_with, (0, None))(vectors, x)``.
        """
        latent, trained = self._unpacked(vector)
        return self.target.run({**self.generate_weights(self._split(latent)), **trained}, args, kwargs)

    def _unpacked(self, vector: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        if vector.shape != (self.latent_dim,):
            raise BudgetError(f"a latent vector has {self.latent_dim:,} numbers, got shape {list(vector.shape)}")
        trained = self.target.trained.as_dict()
        sizes = [self.latent.numel(), *(tensor.numel() for tensor in trained.values())]
        stops = list(accumulate(sizes))
        parts = [vector[stop - size : stop] for size, stop in zip(sizes, stops, strict=True)]
        return parts[0], {
            name: part.reshape(tensor.shape).to(tensor)
            for (name, tensor), part in zip(trained.items(), parts[1:], strict=True)
        }

    def latent_vector(self) -> Tensor:
        """A detached copy of all that trains, flat [latent_dim]: the latent, then what trains directly.

        What to average in federated learning or over a trajectory, and to keep for each user.
        """
        with torch.no_grad():
            parts = [self.latent, *self.target.trained.as_dict().values()]
            return torch.cat([part.detach().reshape(-1) for part in parts])

    def load_latent_vector(self, vector: Tensor) -> None:
        """Take over a vector [latent_dim] as `latent_vector` gives it; nothing changes if it does not fit."""
        if not isinstance(vector, Tensor):
            raise BudgetError(f"a latent vector is a tensor [latent_dim], got {type(vector).__name__}")
        if wrong := int((~torch.isfinite(vector)).sum()):
            raise BudgetError(f"a latent vector is made of finite numbers, {wrong:,} of {vector.numel():,} are not")
        latent, trained = self._unpacked(vector.detach())
        with torch.no_grad():
            self.latent.copy_(latent)
            for name, tensor in self.target.trained.as_dict().items():
                tensor.copy_(trained[name])

    def stack(self, vectors: Sequence[Tensor]) -> Callable[..., Any]:
        """Return a function that runs the target under several latent vectors at once, by `torch.func.vmap`.

        Its outputs have the vectors in front: [len(vectors), ...]. For targets and modes that
        vmap can run: no running statistics that change, and dropout only in evaluation mode.

        >>> model = MappingModel(nn.Linear(4, 2), latent_dim=6, strategy="slvt")
        >>> model.stack([torch.zeros(6), torch.ones(6)])(torch.ones(3, 4)).shape
        torch.Size([2, 3, 2])
        """
        if len(vectors) == 0:
            raise BudgetError("stack: needs at least one latent vector, got none")
        stacked = torch.stack([vector.to(self.latent) for vector in vectors])

        def run(*args: Any, **kwargs: Any) -> Any:
            return torch.func.vmap(lambda vector: self.forward_with(vector, *args, **kwargs))(stacked)

        return run

    @torch.inference_mode(False)
    @torch.no_grad()
    def rebase(self, seed: int | None = None) -> None:
        """Make the present weights the base, and go on with a latent of 0 under a new mapping.

        The weights stay the same to the bit. What was trained is then the list `foldings` and the latent:
        files hold all of it, and loading repeats the list on the base as it was given, so that the file
        grows by ``4 * latent_dim`` bytes each time. That base is kept in memory too, 4 bytes a weight more.
        `seed`, below 2**63, is the new mapping's, by default one above the last.

        Raises `ConfigError` for a strategy that keeps state of its own (masks, grids), with
        ``share_base=True``, and for a wrong seed.
        """
        seed = self.mapping_seed + 1 if seed is None else checked_seed(seed)
        if max(seed, self.mapping_seed) >= 2**63:
            raise ConfigError(f"must be below 2**63 where the base moves, got {seed}", path="seed")
        if self._has_generator_state:
            raise ConfigError(f"strategy {self.strategy.name!r} keeps state of its own, and its base cannot move")
        if self.target.shares_base:
            raise ConfigError("a shared base cannot move: use share_base=False", path="share_base")
        folding = Folding(self.mapping_seed, self.latent.detach().clone())
        self.target.move_base(self.generate_weights())
        self.latent.zero_()
        self._use_mapping(seed)
        self.foldings.put([*self.foldings.entries, folding], seed)

    def _use_mapping(self, seed: int, base: str = "current") -> None:
        """Build the generator anew; a base that moved is there, whatever `base` was at first."""
        self._cache.clear()
        self.mapping_seed = seed
        self.generator = self._build_generator(self.latent.numel(), seed, base).to(self.latent.device)
        self._tables = UnregisteredBuffers(self.generator)

    @torch.inference_mode(False)
    @torch.no_grad()
    def _replay(self, entries: Sequence[Folding], present: int) -> None:
        """Move the base as given by these foldings, instead of those there are."""
        self.target.return_base()
        base = self.base
        for entry in entries:
            self._use_mapping(entry.seed, base)
            self.target.move_base(self.generate_weights(self._split(entry.latent)))
            base = "current"
        self._use_mapping(present, base)
        self.foldings.put(entries, present)

    def recalibrate(self, loader: Iterable[Any], *, batches: int | None = None) -> int:
        """Estimate BatchNorm statistics anew under the present weights; returns the batches used.

        `loader` yields what training loaders do (``(inputs, targets)``, dictionaries), or
        bare inputs. The statistics are saved with the model from then on.
        """
        from mapping_core.training.batches import inputs_of

        def run(batch: Any) -> Any:
            args, kwargs = inputs_of(batch)
            return self.target.run(self.generate_weights(), args, kwargs)

        return recalibrate(self.target, run, loader, batches)

    def train(self, mode: bool = True) -> Self:
        """Set training or evaluation mode, for the target too; frozen statistics stay in evaluation mode."""
        self._cache.clear()
        return super().train(mode)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        for key in [key for key in state_dict if key.startswith(prefix)]:
            plain = prefix + unprefixed(key.removeprefix(prefix))
            if plain != key:
                state_dict[plain] = state_dict.pop(key)
        found = foldings_in(state_dict, f"{prefix}foldings.", self.latent)
        if found or self.foldings.entries:
            self._replay(*(found or ((), self.seed)))
        # What another model began to track, by `recalibrate`, this one tracks too.
        tracked = prefix + "target.tracked."
        self.target.track(frozenset(key.removeprefix(tracked) for key in state_dict if key.startswith(tracked)))
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        self._cache.clear()
        self._tables.apply(fn)
        applied: Self = super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return applied

    def base_fingerprint(self) -> str:
        """A hash of everything of the target that is given and not trained, as it was given."""
        return self.target.fingerprint()

    def mapping_bytes(self) -> int:
        """Bytes of frozen state the mapping keeps in memory."""
        trees = [module for module in self.generator.modules() if isinstance(module, TensorTree)]
        kept = [
            *self._tables.tensors(),
            *self.generator.buffers(),
            *(t for tree in trees for t in tree.as_dict().values()),
        ]
        return sum(tensor.nbytes for tensor in {id(tensor): tensor for tensor in kept}.values())

    def summary(self) -> str:
        """A table of latents, weights and shares, ready to print."""
        from mapping_core.summary import summarize

        return summarize(self)

    def file_bytes(self) -> int:
        """The bytes of the file that `save` would write now."""
        return files.size_of(self)

    def save(self, path: str | Path) -> None:
        """Write all that trained, and the recipe, to one safetensors file (`mapping_core.files`)."""
        files.write(path, self)

    @classmethod
    def load(
        cls,
        path: str | Path,
        target_model: nn.Module,
        *,
        share_base: bool = False,
        lazy: bool | Patterns = False,
        registry: Registry | None = None,
    ) -> Self:
        """Read a file that `save` wrote, for the same target with the same base weights.

        With ``base="seeded"`` the target's own weights do not matter. `share_base` and `lazy`
        are not part of a file: they say how this process keeps and runs the target.

        Raises `FileFormatError` when the file is damaged, foreign, newer, or made for another
        target, and `UnknownComponentError` when a plugin it needs is not installed.
        """
        return files.load(cls, path, target_model, share_base=share_base, lazy=lazy, registry=registry)

    def export(self) -> nn.Module:
        """Return a plain module, the target's twin, with the weights filled in.

        It shares nothing with this model or the user's module; ties are ties, the
        `requires_grad` flags are the target's, buffers and modes are the present ones.
        """
        with torch.no_grad():
            return self.target.filled(self.generate_weights())

    def export_state_dict(self) -> dict[str, Any]:
        """The `state_dict` of `export()`: what the target's own `load_state_dict` takes.

        Tensors by name, and the extra state of modules that have one (`get_extra_state`). With
        ``buffers="batch"`` there are no running statistics in it: load it with ``strict=False``.
        """
        return dict(self.export().state_dict())

    def __getattr__(self, name: str) -> Any:
        """Answer for the target's plain data, such as its `config`, which trainers look at.

        Not for tensors, modules, methods and properties: what depends on weights is asked
        of `export()`, since the skeleton has none.
        """
        try:
            return super().__getattr__(name)
        except AttributeError:
            target = vars(self).get("_modules", {}).get("target")
            if target is None or name.startswith("_"):
                raise
            found = inspect.getattr_static(target.skeleton, name, self)  # itself for nothing
            if found is self or callable(found) or hasattr(found, "__get__") or isinstance(found, Tensor):
                raise
            return found

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({type(self.skeleton).__name__}, latent_dim={self.latent_dim}, "
            f"strategy={self.strategy!r}, mapper={self.mapper!r})"
        )
