"""Wrappers around modules: taken off, or refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from mapping_core import MappingModel, TargetError
from mapping_core.target.wrappers import plain_target, unwrapped
from tests import targets


def test_layers_of_wrappers() -> None:
    """Any number of wrappers is taken off; a plain module is itself, also one with a child called `module`."""
    inner = targets.mlp()
    wrapped: Any = torch.compile(nn.DataParallel(inner))
    assert unwrapped(nn.DataParallel(wrapped)) is inner
    assert unwrapped(inner) is inner
    other = nn.ModuleDict({"module": inner})
    assert plain_target(other) is other


@pytest.mark.filterwarnings("ignore:`torch.jit.script")
def test_torchscript() -> None:
    """A scripted target is refused, as a whole and in part, with what to do."""
    scripted = torch.jit.script(targets.mlp())
    with pytest.raises(TargetError, match=r"'target_model' is TorchScript, .*pass the module that it was made of"):
        MappingModel(scripted, 16)
    with pytest.raises(TargetError, match="'1' is TorchScript"):
        MappingModel(nn.Sequential(nn.Linear(6, 6), scripted), 16)
