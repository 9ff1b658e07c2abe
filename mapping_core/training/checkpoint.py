"""Checkpoints of a run: a folder that is either whole or not there."""

from __future__ import annotations

import secrets
import shutil
from pathlib import Path

import safetensors.torch
from torch import nn

from mapping_core.model import MappingModel
from mapping_core.target.wrappers import unwrapped


def write_checkpoint(folder: Path, model: nn.Module) -> Path:
    """Write the model's trained state to `folder` and return it.

    A mapped model is written by `MappingModel.save`, any other as the tensors of its
    `state_dict`. The folder is written under another name beside its place and renamed
    when it is complete, so an interrupted write leaves no half checkpoint.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Not by `tempfile`, whose folders nobody else may read, even after the renaming.
    temporary = folder.with_name(f".{folder.name}-{secrets.token_hex(4)}")
    temporary.mkdir()
    try:
        path = temporary / "model.safetensors"
        model = unwrapped(model)
        if isinstance(model, MappingModel):
            model.save(path)
        else:
            safetensors.torch.save_model(model, str(path))
            path.chmod(temporary.stat().st_mode & 0o666)  # as any new file, not for its owner alone
        if folder.exists():
            shutil.rmtree(folder)
        temporary.replace(folder)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return folder
