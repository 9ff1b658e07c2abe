"""`TensorTree`: named tensors in a module, so that `.to()` moves them with the model."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn


class TensorTree(nn.Module):
    """Tensors under dotted names, in nested modules that mirror the names.

    A name may hold dots, which `register_buffer` refuses; replacing them by another
    character would let ``a.b`` and ``a_b`` collide. Parameters are registered as such,
    other tensors as buffers; with ``persistent=True`` these appear in `state_dict()`.

    >>> import torch
    >>> tree = TensorTree({"a.b": torch.zeros(1), "a_b": torch.ones(1)}, persistent=True)
    >>> list(tree.state_dict())
    ['a_b', 'a.b']
    """

    def __init__(self, tensors: Mapping[str, Tensor], *, persistent: bool) -> None:
        super().__init__()
        self._slots: dict[str, tuple[dict[str, Tensor | None], str]] = {}
        for name, tensor in tensors.items():
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
                if not persistent:
                    node._non_persistent_buffers_set.add(leaf)
                self._slots[name] = (node._buffers, leaf)

    def as_dict(self) -> dict[str, Tensor]:
        """The tensors by name, as they are now."""
        return {name: slot[leaf] for name, (slot, leaf) in self._slots.items()}  # type: ignore[misc]

    def put(self, name: str, tensor: Tensor) -> None:
        """Set another tensor in the place of one; it may have another shape."""
        slot, leaf = self._slots[name]
        slot[leaf] = tensor
