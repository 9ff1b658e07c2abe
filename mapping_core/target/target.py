"""`Target`: all that a mapped model keeps of the user's module, and how it is run."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping
from typing import Any, Self

import torch
from torch import Tensor, nn

from mapping_core.errors import TargetError
from mapping_core.target import execution
from mapping_core.target.attributes import recomputed_attributes
from mapping_core.target.base import base_tensors
from mapping_core.target.buffers import BufferPlan, plan_buffers, use_batch_statistics
from mapping_core.target.fingerprint import fingerprint
from mapping_core.target.hidden import refuse_hidden_parameters
from mapping_core.target.inference import is_transformed
from mapping_core.target.layout import Layout
from mapping_core.target.lazy import LazyExecution, Provider, find_units
from mapping_core.target.roles import Pattern
from mapping_core.target.tensors import TensorTree
from mapping_core.target.watch import watched


class Target(nn.Module):
    """A skeleton without weights, and the tensors it runs under that no latent generates.

    `base` holds theta_0 of the mapped parameters, `frozen` the parameters that keep their
    values, `trained` those that train directly, `tracked` the buffers that may change,
    `scratch` those that may too and are not persistent, `constants` the others. All but `base`,
    and `frozen` when it is shared, are private copies. Only `trained` and `tracked` are registered, so
    only they are in `state_dict()` and sent to other ranks.
    """

    def __init__(
        self,
        module: nn.Module,
        layout: Layout,
        *,
        base: str,
        seed: int,
        buffers: str,
        share_base: bool,
        units: tuple[Pattern, ...],
    ) -> None:
        super().__init__()
        refuse_hidden_parameters(module)
        plan = plan_buffers(module, buffers)
        parameters = dict(module.named_parameters())
        own = execution.detached if share_base else execution.copy_tensors
        # Not registered: its meta parameters are neither ours to list nor to save.
        object.__setattr__(self, "skeleton", execution.skeleton_of(module))
        if buffers == "batch":
            use_batch_statistics(self.skeleton)
        self._always_eval = plan.always_eval
        self.layout = layout
        self.base = TensorTree(own(base_tensors(module, base, seed=seed, layout=layout)), persistent=False)
        #: The base as it was given, where it has moved since.
        self.origin = TensorTree({}, persistent=False)
        self.frozen = TensorTree(own({s.name: parameters[s.name] for s in layout.frozen}), persistent=False)
        copies = execution.copy_tensors({spec.name: parameters[spec.name] for spec in layout.trained})
        self.trained = TensorTree({name: nn.Parameter(tensor) for name, tensor in copies.items()}, persistent=True)
        self._aliases = {alias: spec.name for spec in layout.parameters for alias in spec.aliases}
        self._place_buffers(module, plan)
        self._drop_names_of_one_place(module)
        #: The user's own weights, to notice a target that reaches them past the module.
        self._originals = {spec.name: weakref.ref(parameters[spec.name]) for spec in layout.mapped}
        self._units = find_units(self.skeleton, self._mapped_names(), units)
        self._computed = recomputed_attributes(module)
        # The gradient of a generated weight is dense, and the mapping reads it as such.
        self._sparse = _sparse_owners(module, self._mapped_names())
        for path in self._sparse:
            self.skeleton.get_submodule(path).sparse = False  # type: ignore[assignment]
        self._recurrent = [path for path, m in module.named_modules() if isinstance(m, nn.RNNBase)]
        self._watched: set[tuple[bool, bool]] = set()
        self._fingerprint: str | None = None
        self._lock = threading.RLock()
        self._mode = False  # the one the skeleton was last set to
        self._training_modes: list[bool] = []
        self._set_modes(module)
        self._shared = share_base

    skeleton: nn.Module

    def base_versions(self) -> tuple[int, ...]:
        """The version counters of a base that others can write to; empty for a private one."""
        if not self._shared:
            return ()
        return tuple(tensor._version for tensor in self.base.as_dict().values() if not tensor.is_inference())

    def _place_buffers(self, module: nn.Module, plan: BufferPlan) -> None:
        present = dict(self.skeleton.named_buffers())
        buffers = {name: buffer for name, buffer in module.named_buffers() if name in present}
        first_name = {id(buffer): name for name, buffer in buffers.items()}
        for name, buffer in module.named_buffers(remove_duplicate=False):
            if name not in buffers and id(buffer) in first_name:
                self._aliases[name] = first_name[id(buffer)]
        copies = execution.copy_tensors(buffers)
        self.tracked = TensorTree({k: v for k, v in copies.items() if k in plan.tracked}, persistent=True)
        self.scratch = TensorTree({k: v for k, v in copies.items() if k in plan.scratch}, persistent=False)
        changing = plan.tracked | plan.scratch
        self.constants = TensorTree({k: v for k, v in copies.items() if k not in changing}, persistent=False)
        # The fingerprint is of what was given; it is not computed before somebody asks.
        self._given_scratch = execution.copy_tensors(self.scratch.as_dict())
        self._overwritten: set[str] = set()  # constants that the target was seen to write to

    def _drop_names_of_one_place(self, module: nn.Module) -> None:
        """Leave out aliases that only name a shared module's own tensor by another path.

        A functional call would put two tensors in one place, and afterwards restore the wrong one.
        """
        modules = dict(module.named_modules(remove_duplicate=False))
        names = [name for name, _ in [*module.named_parameters(), *module.named_buffers()]]
        places: set[tuple[int, str]] = set()
        for name in [*names, *self._aliases]:
            owner, _, leaf = name.rpartition(".")
            place = (id(modules[owner]), leaf)
            if place in places:
                self._aliases.pop(name, None)
            places.add(place)

    def _mapped_names(self) -> dict[str, str]:
        return {name: spec.name for spec in self.layout.mapped for name in (spec.name, *spec.aliases)}

    def _set_modes(self, module: nn.Module) -> None:
        self.train(module.training)
        for path, own in module.named_modules():
            if path not in self._always_eval:
                self.skeleton.get_submodule(path).training = own.training

    def train(self, mode: bool = True) -> Self:
        """Set the skeleton's mode; modules whose statistics are frozen stay in evaluation mode."""
        if self._mode and not mode:
            self._training_modes = [module.training for module in self.skeleton.modules()]
        self._mode = mode
        super().train(mode)
        self.skeleton.train(mode)
        for path in self._always_eval:
            self.skeleton.get_submodule(path).eval()
        return self

    def _follow_mode(self) -> None:
        """Take over a mode that was set on this module without `train`, which the skeleton cannot have noticed.

        Lightning does so after validation: it gives each module the flag back that it had before.
        """
        if self.training == self._mode:
            return
        self.train(self.training)
        if self.training and self._training_modes:
            for module, training in zip(self.skeleton.modules(), self._training_modes, strict=True):
                module.training = training

    def kept(self) -> dict[str, Tensor]:
        """All tensors that no latent generates, as they are now."""
        return {
            **self.frozen.as_dict(),
            **self.trained.as_dict(),
            **self.tracked.as_dict(),
            **self.scratch.as_dict(),
            **self.constants.as_dict(),
        }

    def run(
        self, weights: Mapping[str, Tensor], args: tuple[Any, ...], kwargs: Mapping[str, Any], *, track: bool = True
    ) -> Any:
        """Run the skeleton under generated weights (one for every mapped parameter) and return its output.

        With ``track=False`` the pass leaves no trace: running statistics stay what they were.
        """

        def call(tensors: dict[str, Tensor]) -> Any:
            tensors.update(weights)
            self._name_aliases(tensors)
            return execution.call(self.skeleton, tensors, args, kwargs)

        return self._guarded(call, track)

    def run_lazily(
        self, provider: Provider, latents: Mapping[str, Tensor], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        """Run the skeleton while `provider` generates each unit's weights (`mapping_core.target.lazy`)."""
        lazy = LazyExecution(self.skeleton, self._units, provider)

        def call(tensors: dict[str, Tensor]) -> Any:
            self._name_aliases(tensors)
            return lazy.call(latents, tensors, args, kwargs)

        return self._guarded(call)

    def _guarded(self, call: Callable[[dict[str, Tensor]], Any], track: bool = True) -> Any:
        """Run `call` on the kept tensors: one thread at a time, constants safe, tracked buffers written back."""
        self._follow_mode()
        tensors = self.kept()
        # A module may write to its buffers, and constants must not change. In evaluation mode few
        # do, and the first pass shows which.
        constants = self.constants.as_dict()
        if not self.training and (torch.compiler.is_compiling() or self._passed in self._watched):
            constants = {name: tensor for name, tensor in constants.items() if name in self._overwritten}
        copies = execution.copy_tensors(constants)
        tensors.update(copies)
        if not track:
            tensors.update(execution.copy_tensors({**self.tracked.as_dict(), **self.scratch.as_dict()}))
        if torch.compiler.is_compiling():
            output = call(tensors)
            if track:
                self._write_back(tensors)
            return output
        # One skeleton holds one set of weights at a time: two threads would mix theirs.
        with self._lock:
            try:
                if self._passed in self._watched:
                    output = call(tensors)
                else:
                    output = self._watched_call(call, tensors)
                    self._overwritten |= {n for n, copy in copies.items() if not torch.equal(copy, constants[n])}
            finally:
                execution.release(self.skeleton, self._computed, self._recurrent)
        if track:
            self._write_back(tensors)
        return output

    @property
    def _passed(self) -> tuple[bool, bool]:
        """The state of a pass as far as what it does may depend on it."""
        return self.training, torch.is_grad_enabled()

    def _write_back(self, tensors: Mapping[str, Tensor]) -> None:
        # What a module remembers of many models at once is of no use to one.
        for tree in (self.tracked,) if is_transformed() else (self.tracked, self.scratch):
            for name, buffer in tree.as_dict().items():
                new = tensors[name]
                if new is not buffer:  # the module put another tensor in its place
                    if new.shape == buffer.shape and new.dtype == buffer.dtype:
                        buffer.copy_(new.detach())
                    else:
                        tree.put(name, new.detach().clone())
                elif buffer.grad_fn is not None:  # written to under a gradient, which ends with the pass
                    tree.put(name, buffer.detach())

    def _watched_call(self, call: Callable[[dict[str, Tensor]], Any], tensors: dict[str, Tensor]) -> Any:
        frozen = self.frozen.as_dict()
        alive = {name: reference() for name, reference in self._originals.items()}
        originals = {id(tensor): name for name, tensor in alive.items() if tensor is not None}
        boundary = Target._guarded.__code__
        with watched(self.skeleton, boundary, frozen, originals, self._written_to, gradient=self._passed[1]):
            output = call(tensors)
        self._watched.add(self._passed)
        return output

    def _written_to(self, name: str, renormed: bool) -> None:
        """The target is about to write to a frozen parameter."""
        if renormed and not self._shared:
            self.fingerprint()  # while it is as it was given; an embedding's max_norm does the same to it after loading
            return
        fix = "use share_base=False" if renormed else "make it a buffer, and use buffers='tracked'"
        raise TargetError(f"forward() writes to the frozen parameter {name!r}, which must keep its values: {fix}")

    def _name_aliases(self, tensors: dict[str, Tensor]) -> None:
        for alias, name in self._aliases.items():
            if name in tensors:
                tensors[alias] = tensors[name]

    def filled(self, weights: Mapping[str, Tensor]) -> nn.Module:
        """A plain module with these weights and everything kept in it, sharing nothing."""
        module = execution.filled(self.skeleton, {**self.kept(), **weights})
        for path in self._sparse:
            module.get_submodule(path).sparse = True  # type: ignore[assignment]
        return module

    def track(self, names: frozenset[str]) -> None:
        """Move buffers from the constants to the tracked ones, since they are about to change."""
        constants, tracked = self.constants.as_dict(), self.tracked.as_dict()
        moved = {name: buffer for name, buffer in constants.items() if name in names}
        if moved:
            self.fingerprint()  # while the buffers are as they were given
            self.tracked = TensorTree({**tracked, **moved}, persistent=True)
            self.constants = TensorTree({k: v for k, v in constants.items() if k not in moved}, persistent=False)

    def fingerprint(self) -> str:
        """A hash of everything that is given and not trained, as it was given."""
        if self._fingerprint is None:
            self._fingerprint = fingerprint(self.given())
        return self._fingerprint

    def given(self) -> dict[str, Tensor]:
        """Everything that is given and not trained, by name."""
        given = {**self.base.as_dict(), **self.origin.as_dict()}
        return {**given, **self.frozen.as_dict(), **self.constants.as_dict(), **self._given_scratch}

    @property
    def shares_base(self) -> bool:
        """Whether the base is the user's own tensors."""
        return self._shared

    def move_base(self, weights: Mapping[str, Tensor]) -> None:
        """Set other weights as the base, and keep what was given."""
        base = self.base.as_dict()
        if not self.origin.as_dict():
            self.origin = TensorTree(execution.copy_tensors(base), persistent=False)
        for name, tensor in base.items():
            tensor.copy_(weights[name])

    def return_base(self) -> None:
        """Set the base to what was given."""
        base = self.base.as_dict()
        for name, tensor in self.origin.as_dict().items():
            base[name].copy_(tensor)
        self.origin = TensorTree({}, persistent=False)

    def give(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over what another target of the same architecture was `given`."""
        own = self.given()
        wrong = [name for name in own if name not in tensors or tensors[name].shape != own[name].shape]
        if wrong or self._shared:
            raise TargetError(
                "a shared base cannot be replaced: use share_base=False"
                if self._shared
                else f"these are not the weights of this target: {wrong[0]!r} is missing or has another shape"
            )
        with torch.no_grad():
            for name, tensor in own.items():
                tensor.copy_(tensors[name])
            for name, tensor in self._given_scratch.items():
                self.scratch.as_dict()[name].copy_(tensor)
        self._fingerprint = None

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        # `.half()` rounds the base, and a file must still fit the target as it was given.
        if self._fingerprint is None and any(_changes_dtype(fn, tensor) for tensor in self.given().values()):
            self.fingerprint()
        applied: Self = super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return applied

    def __getstate__(self) -> dict[str, Any]:
        state = {name: value for name, value in self.__dict__.items() if name != "_lock"}
        state["_originals"] = {}  # of this process, and of this model alone
        # Modules may remember tensors of their last pass, whose graph can be neither copied nor pickled.
        state["skeleton"] = execution.skeleton_again(self.skeleton)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._lock = threading.RLock()


def _sparse_owners(module: nn.Module, mapped: Mapping[str, str]) -> list[str]:
    """The paths of embeddings with mapped weights whose gradients are to be sparse tensors."""
    owners = {name.rpartition(".")[0] for name in mapped}
    return [
        path
        for path, m in module.named_modules()
        if path in owners and isinstance(m, nn.Embedding | nn.EmbeddingBag) and m.sparse
    ]


def _changes_dtype(fn: Callable[[Tensor], Tensor], tensor: Tensor) -> bool:
    if tensor.is_meta:
        raise TargetError("the base has no values: it is on the meta device")
    return fn(tensor.new_empty(0)).dtype != tensor.dtype
