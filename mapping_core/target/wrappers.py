"""Wrappers around a target, which have no part in what is mapped."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from mapping_core.errors import TargetError


def unwrapped(target: nn.Module) -> nn.Module:
    """The module inside `torch.compile`, DistributedDataParallel or DataParallel, so that names are always the same.

    The model runs it plainly: wrap the mapped model instead. Raises `TargetError` for
    TorchScript, whose weights cannot be replaced from outside.

    >>> unwrapped(DataParallel(nn.Linear(2, 3)))
    Linear(in_features=2, out_features=3, bias=True)
    """
    while True:
        compiled = target._modules.get("_orig_mod") if isinstance(target._modules, dict) else None
        if isinstance(compiled, nn.Module):
            target = compiled
        elif isinstance(target, DataParallel | DistributedDataParallel):
            target = target.module
        else:
            break
    for path, module in target.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            raise TargetError(
                f"{path or 'target_model'!r} is TorchScript, whose weights cannot be replaced from outside: "
                "pass the module that it was made of"
            )
    return target
