"""Parameters that a module also holds where a functional call cannot reach them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn

from mapping_core.errors import TargetError

_REGISTERED = frozenset({"_parameters", "_buffers", "_modules"})


def refuse_hidden_parameters(target: nn.Module) -> None:
    """Raise `TargetError` for a parameter kept in a plain attribute, list, tuple or dictionary.

    ``self.heads = [self.a.weight, self.b.weight]`` goes on using the old tensors when the
    registered ones are replaced, so generated weights would silently not arrive. Recurrent
    layers of torch keep such a list and refresh it themselves; they are fine.
    """
    names = {id(parameter): name for name, parameter in target.named_parameters()}
    for path, module in target.named_modules():
        for attribute, value in vars(module).items():
            if attribute in _REGISTERED or (isinstance(module, nn.RNNBase) and attribute == "_flat_weights"):
                continue
            for tensor in _tensors(value, depth=4):
                if id(tensor) in names:
                    where = f"{path}.{attribute}" if path else attribute
                    raise TargetError(
                        f"parameter {names[id(tensor)]!r} is also held by the plain attribute {where!r}, which would "
                        "go on using the old weights: read it from its module in forward(), or use nn.ParameterList"
                    )


def _tensors(value: Any, depth: int) -> Iterator[nn.Parameter]:
    if isinstance(value, nn.Parameter):
        yield value
    elif depth and isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item, depth - 1)
    elif depth and isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item, depth - 1)
