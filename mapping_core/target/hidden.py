"""Parameters that a module also holds where a functional call cannot reach them."""

from __future__ import annotations

from torch import Tensor, nn

from mapping_core.errors import TargetError
from mapping_core.target.attributes import held_in_attributes, recomputed_attributes


def refuse_hidden_parameters(target: nn.Module) -> None:
    """Raise `TargetError` for a parameter, or its memory, that is held by more than parameters' names.

    ``self.heads = [self.a.weight, self.b.weight]`` goes on using the old tensors when the
    registered ones are replaced, so generated weights would silently not arrive; so do a
    view of a weight, a closure over one, and a function that captures a module of the
    target. Two parameters on one memory would be generated apart.
    """
    _refuse_shared_memory(target)
    names = {id(parameter): name for name, parameter in target.named_parameters()}
    modules = {id(module): path for path, module in target.named_modules()}
    memory = {storage: name for name, parameter in target.named_parameters() if (storage := _storage(parameter))}
    recomputed = set(recomputed_attributes(target))
    for held in held_in_attributes(target):
        if isinstance(held.value, nn.Module):
            raise TargetError(
                f"a function in the attribute {held.place!r} captures the target's own module "
                f"{modules[id(held.value)] or '(root)'!r}, which a copy of the target would go on using: make it a "
                "method, or pass the module as an argument"
            )
        if id(held.value) in names:
            raise TargetError(
                f"parameter {names[id(held.value)]!r} is also held by the plain attribute {held.place!r}, which would "
                "go on using the old weights: read it from its module in forward(), or use nn.ParameterList"
            )
        if (held.owner, held.attribute) not in recomputed and (name := memory.get(_storage(held.value))):
            raise TargetError(
                f"the plain attribute {held.place!r} shares the memory of parameter {name!r} and would go on using the "
                "old weights: read it from its module in forward(), or clone it if it is to stay as it is"
            )


def _refuse_shared_memory(target: nn.Module) -> None:
    """Two tensors of the target that start at one address and of which one may change."""
    first: dict[int, tuple[str, Tensor]] = {}
    for name, tensor in [*target.named_parameters(), *target.named_buffers()]:
        address = tensor.data_ptr() if _storage(tensor) else 0
        if address == 0:
            continue
        other, known = first.setdefault(address, (name, tensor))
        if known is not tensor and (known.requires_grad or tensor.requires_grad):
            raise TargetError(
                f"{other!r} and {name!r} share memory without being one parameter, so generated weights would reach "
                "only one of them: assign the same nn.Parameter to both, or clone one"
            )


def _storage(tensor: Tensor) -> int:
    """The address of a tensor's memory; 0 for one without (sparse, on the meta device, or empty)."""
    try:
        return int(tensor.untyped_storage().data_ptr())
    except (NotImplementedError, RuntimeError):
        return 0
