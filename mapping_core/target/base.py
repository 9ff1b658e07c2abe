"""The base theta_0: what the mapping is added to.

``"current"``
    The target's own weights, as they are.
``"seeded"``
    Drawn anew from the model's seed, by the modules' own `reset_parameters`. A saved latent
    is then complete: whoever has the target's code has the base.
``"zero"``
    Nothing, as in "Mapping Networks" (arXiv 2602.19134): the weights are the mapping alone, and
    the latent starts at random, for at 0 the network would be 0. Parameters that a layer
    initialises to a constant (norm gains and biases, slopes, scales) keep it; generated
    around 0 they would be destroyed.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from mapping_core.errors import TargetError
from mapping_core.target.execution import filled, skeleton_of
from mapping_core.target.layout import Layout
from mapping_core.target.roles import holders_of

BASES = ("current", "seeded", "zero")


def base_tensors(target: nn.Module, kind: str, *, seed: int, layout: Layout) -> dict[str, Tensor]:
    """The base of every mapped parameter, by name; tensors of the target itself where `kind` is ``"current"``."""
    own = dict(target.named_parameters())
    if kind == "current":
        return {spec.name: own[spec.name] for spec in layout.mapped}
    if kind == "zero":
        return {
            spec.name: own[spec.name] if spec.fan_in is None else torch.zeros_like(own[spec.name])
            for spec in layout.mapped
        }
    drawn = dict(_redrawn(target, seed, layout).named_parameters())
    return {spec.name: drawn[spec.name] for spec in layout.mapped}


def _redrawn(target: nn.Module, seed: int, layout: Layout) -> nn.Module:
    """A twin of the target, on the CPU, initialised from `seed` without touching the global random state."""
    twin = filled(skeleton_of(target), _on_cpu(target))
    modules = dict(twin.named_modules())
    resets = {
        path: getattr(m, "reset_parameters", None) or getattr(m, "_reset_parameters", None)
        for path, m in modules.items()
    }
    for spec in layout.mapped:
        # A module resets what it owns; MultiheadAttention also what its children own.
        if not any(resets.get(path) for path in holders_of(spec.name)):
            owner = type(modules.get(spec.module, twin)).__name__
            raise TargetError(
                f"base='seeded' needs every module to have reset_parameters(); {owner} {spec.module!r}, which owns "
                f"{spec.name!r}, has none: add it, or use base='current'"
            )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for reset in resets.values():
            if reset is not None:
                reset()
    return twin


def _on_cpu(target: nn.Module) -> Mapping[str, Tensor]:
    tensors = {**dict(target.named_parameters()), **dict(target.named_buffers())}
    return {name: tensor.detach().cpu() for name, tensor in tensors.items()}
