"""`TensorTree`: named tensors in a module, so that `.to()` moves them with the model."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn


class TensorTree(nn.Module):
    """Tensors under dotted names, as buffers in nested modules that mirror the names.

    A name may hold dots, which `register_buffer` refuses; replacing them by another
    character would let ``a.b`` and ``a_b`` collide. With ``persistent=True`` they appear in
    `state_dict()` under their own names.
    """

    def __init__(self, tensors: Mapping[str, Tensor], *, persistent: bool) -> None:
        super().__init__()
        self._slots: dict[str, tuple[dict[str, Tensor | None], str]] = {}
        for name, tensor in tensors.items():
            *path, leaf = name.split(".")
            node: nn.Module = self
            for step in path:
                if step not in node._modules:
                    node.add_module(step, nn.Module())
                node = node.get_submodule(step)
            node.register_buffer(leaf, tensor, persistent=persistent)
            # `.to()` replaces entries of this dict in place, so looking the tensor up in it
            # is always right, and spares a walk through the tree.
            self._slots[name] = (node._buffers, leaf)

    def as_dict(self) -> dict[str, Tensor]:
        """The tensors by name, as they are now."""
        return {name: buffers[leaf] for name, (buffers, leaf) in self._slots.items()}  # type: ignore[misc]
