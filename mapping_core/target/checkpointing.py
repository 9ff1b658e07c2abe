"""Activation checkpointing inside a target, which generated weights cannot survive."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType
from typing import Any

import torch.utils.checkpoint
from torch import nn

from mapping_core.errors import TargetError

_CHECKPOINT_FILE = torch.utils.checkpoint.__file__


@contextmanager
def refuse_inner_checkpointing(skeleton: nn.Module, boundary: CodeType) -> Iterator[None]:
    """Raise `TargetError` when, inside, a module of `skeleton` is run by `torch.utils.checkpoint`.

    A checkpointed block runs again during the backward pass, when its module no longer holds
    the generated weights: with ``use_reentrant=True`` the gradient may then be wrong without
    a word. So the first pass with a gradient is watched, before anything has changed.
    `boundary` is the code of the function that runs the target: checkpointing *around* the
    whole mapped model is further out, and fine.
    """
    names = {module: name for name, module in skeleton.named_modules()}

    def look(module: nn.Module, _args: Any) -> None:
        frame = sys._getframe(1)
        while frame.f_back is not None and frame.f_code is not boundary:
            if frame.f_code.co_filename == _CHECKPOINT_FILE:
                raise TargetError(
                    f"the target checkpoints its block {names[module]!r} ({type(module).__name__}), whose "
                    "recomputation would not see the generated weights: turn that off and checkpoint the whole mapped "
                    "model instead, torch.utils.checkpoint.checkpoint(model, x, use_reentrant=False)"
                )
            frame = frame.f_back

    handles = [module.register_forward_pre_hook(look) for module in names]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
