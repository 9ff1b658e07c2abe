"""Tensors that a model shows as its own, because they train or are saved, and those that it only keeps.

DistributedDataParallel sends every registered buffer to all ranks, at the start and before each forward
pass. What is not registered is not sent; a base is as large as the weights, and every rank has it already.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Self

from torch import Tensor, nn


class TensorTree(nn.Module):
    """Tensors under dotted names, which move with the model.

    With ``persistent=True`` they are registered, in nested modules that mirror the names, parameters as
    such and other tensors as buffers, and appear in `state_dict()`. Else they are only kept: no list of
    a model's parameters and buffers shows them.

    A name may hold dots, which `register_buffer` refuses; replacing them by another
    character would let ``a.b`` and ``a_b`` collide.

    >>> import torch
    >>> tree = TensorTree({"a.b": torch.zeros(1), "a_b": torch.ones(1)}, persistent=True)
    >>> list(tree.state_dict())
    ['a_b', 'a.b']
    """

    def __init__(self, tensors: Mapping[str, Tensor], *, persistent: bool) -> None:
        super().__init__()
        self._kept: dict[str, Tensor | None] = {}
        self._slots: dict[str, tuple[dict[str, Tensor | None], str]] = {}
        for name, tensor in tensors.items():
            if not persistent:
                self._kept[name] = tensor
                self._slots[name] = (self._kept, name)
                continue
            *path, leaf = name.split(".")
            node: nn.Module = self
            for step in path:
                # Entered without `add_module`, which refuses what this class itself has a name for.
                node = node._modules.setdefault(step, nn.Module())  # type: ignore[assignment]
            # `.to()` replaces entries of these dictionaries in place, so looking the tensor up
            # in them is always right, and spares a walk through the tree.
            if isinstance(tensor, nn.Parameter):
                node._parameters[leaf] = tensor
                self._slots[name] = (node._parameters, leaf)  # type: ignore[assignment]
            else:
                node._buffers[leaf] = tensor
                self._slots[name] = (node._buffers, leaf)

    def as_dict(self) -> dict[str, Tensor]:
        """The tensors by name, as they are now."""
        return {name: slot[leaf] for name, (slot, leaf) in self._slots.items()}  # type: ignore[misc]

    def put(self, name: str, tensor: Tensor) -> None:
        """Set another tensor in the place of one; it may have another shape."""
        slot, leaf = self._slots[name]
        slot[leaf] = tensor

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        for name, tensor in self._kept.items():
            assert tensor is not None
            self._kept[name] = fn(tensor)
        applied: Self = super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return applied


class UnregisteredBuffers:
    """The buffers of `module` that are not persistent, made plain attributes of the same names.

    >>> module = nn.BatchNorm1d(2)
    >>> module.register_buffer("table", Tensor([1, 2]), persistent=False)
    >>> kept = UnregisteredBuffers(module)
    >>> [name for name, _ in module.named_buffers()], module.table
    (['running_mean', 'running_var', 'num_batches_tracked'], tensor([1., 2.]))
    """

    def __init__(self, module: nn.Module) -> None:
        self._places: list[tuple[nn.Module, str]] = []
        for owner in module.modules():
            for name in sorted(owner._non_persistent_buffers_set):
                if isinstance(tensor := owner._buffers[name], Tensor):
                    delattr(owner, name)
                    owner.__dict__[name] = tensor
                    self._places.append((owner, name))

    def tensors(self) -> list[Tensor]:
        """The tensors, as they are now."""
        return [getattr(owner, name) for owner, name in self._places]

    def apply(self, fn: Callable[[Tensor], Tensor]) -> None:
        """What `nn.Module._apply` does to buffers, for the `_apply` of the module that keeps this."""
        for owner, name in self._places:
            setattr(owner, name, fn(getattr(owner, name)))
