"""All that must not change of a module that is only to be read."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


def snapshot(module: nn.Module) -> dict[str, Any]:
    """Return bits, storage, flags, gradients, modes and hooks, and which tensors are one; compare with `==`."""
    tensors = {
        **dict(module.named_parameters(remove_duplicate=False)),
        **dict(module.named_buffers(remove_duplicate=False)),
    }
    return {
        "bits": {name: tensor.detach().reshape(-1).view(torch.uint8).tolist() for name, tensor in tensors.items()},
        "identity": {name: id(tensor) for name, tensor in tensors.items()},
        "storage": {name: tensor.data_ptr() for name, tensor in tensors.items()},
        "versions": {name: tensor._version for name, tensor in tensors.items()},
        "flags": {name: tensor.requires_grad for name, tensor in tensors.items()},
        "grads": {name: tensor.grad for name, tensor in tensors.items()},
        "modes": [each.training for each in module.modules()],
        "hooks": [len(each._forward_hooks) + len(each._forward_pre_hooks) for each in module.modules()],
        "attributes": {path: sorted(vars(each)) for path, each in module.named_modules()},
    }
