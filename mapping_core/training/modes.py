"""Evaluating a model and leaving every module's mode as it was."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from mapping_core.model import MappingModel


def all_modules(model: nn.Module) -> list[nn.Module]:
    """The model's modules, and those of the skeleton that a mapped model executes."""
    modules = list(model.modules())
    for module in list(modules):
        if isinstance(module, MappingModel):
            modules.extend(module.skeleton.modules())
    return modules


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Evaluation mode inside, and afterwards each module's own mode again.

    Calling `train()` afterwards instead would put modules into training mode that the user
    had set to evaluation, such as frozen norms.
    """
    modes = [(module, module.training) for module in all_modules(model)]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
