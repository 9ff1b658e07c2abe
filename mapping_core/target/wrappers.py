"""Wrappers around a module, which have no part in what is mapped, trained or saved."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from mapping_core.errors import TargetError

#: What wrappers put before the keys of a state dict: torch.compile, DDP, Fabric, FSDP, activation checkpointing.
_PREFIXES = frozenset({"_orig_mod", "module", "_forward_module", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})


def unwrapped(module: nn.Module) -> nn.Module:
    """The module inside `torch.compile`, DistributedDataParallel or DataParallel, so that names are always the same.

    >>> unwrapped(DataParallel(nn.Linear(2, 3)))
    Linear(in_features=2, out_features=3, bias=True)
    """
    while True:
        # A module takes long to say that it has no such attribute, and this is asked every step.
        compiled = module._modules["_orig_mod"] if "_orig_mod" in module._modules else None  # noqa: SIM401 TorchScript
        if isinstance(compiled, nn.Module):
            module = compiled
        elif isinstance(module, DataParallel | DistributedDataParallel):
            module = module.module
        else:
            return module


def plain_target(target: nn.Module) -> nn.Module:
    """The target without wrappers, run plainly: it is the mapped model that can be compiled or distributed.

    Raises `TargetError` for what is no module, and for TorchScript, whose weights cannot be replaced from outside.
    """
    if not isinstance(target, nn.Module):
        raise TargetError(f"target_model must be a torch.nn.Module, got {type(target).__name__}")
    target = unwrapped(target)
    for path, module in target.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            raise TargetError(
                f"{path or 'target_model'!r} is TorchScript, whose weights cannot be replaced from outside: "
                "pass the module that it was made of"
            )
    return target


def unprefixed(name: str) -> str:
    """A key of a state dict without what wrappers put in front of it.

    >>> unprefixed("module._orig_mod.latent")
    'latent'
    """
    while (parts := name.partition("."))[0] in _PREFIXES:
        name = parts[2]
    return name
