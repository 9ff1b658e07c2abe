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

BASES = ("current", "seeded", "zero")


def base_tensors(target: nn.Module, kind: str, *, seed: int, layout: Layout) -> dict[str, Tensor]:
    """The base of every mapped parameter, by name; tensors of the target itself where `kind` is ``"current"``."""
    own = dict(target.named_parameters())
    if kind == "current":
        return {spec.name: own[spec.name] for spec in layout.mapped}
    if kind == "zero":
        return {
            spec.name: own[spec.name] if spec.starts_constant else torch.zeros_like(own[spec.name])
            for spec in layout.mapped
        }
    drawn = dict(_redrawn(target, seed, layout).named_parameters())
    return {spec.name: drawn[spec.name] for spec in layout.mapped}


def _redrawn(target: nn.Module, seed: int, layout: Layout) -> nn.Module:
    """A twin of the target, on the CPU, initialised from `seed` without touching the global random state."""
    twin = filled(skeleton_of(target), _on_cpu(target))
    modules = dict(twin.named_modules())
    parameters = dict(twin.named_parameters())
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        # The CPU's generator alone: torch.manual_seed would seed the user's other devices too.
        torch.default_generator.manual_seed(seed)
        for spec in layout.mapped:
            parameters[spec.name].fill_(torch.nan)
        for module in modules.values():
            reset = getattr(module, "reset_parameters", None) or getattr(module, "_reset_parameters", None)
            if reset is not None:
                reset()
        for spec in layout.mapped:
            if spec.fixed_row is not None:  # which another module on the same weight may have drawn
                parameters[spec.name][spec.fixed_row] = 0
    for spec in layout.mapped:
        if parameters[spec.name].isnan().any():
            owner = modules.get(spec.module, twin)
            fault = "has one that does not draw it" if hasattr(owner, "reset_parameters") else "has none"
            raise TargetError(
                "base='seeded' needs every module to have a reset_parameters() that draws its weights; "
                f"{type(owner).__name__} {spec.module!r}, which owns {spec.name!r}, {fault}: "
                "add it, or use base='current'"
            )
    return twin


def _on_cpu(target: nn.Module) -> Mapping[str, Tensor]:
    tensors = {**dict(target.named_parameters()), **dict(target.named_buffers())}
    return {name: tensor.detach().cpu() for name, tensor in tensors.items()}
