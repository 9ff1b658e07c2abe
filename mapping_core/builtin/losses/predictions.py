"""Finding the tensor to score in whatever a target returned."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from mapping_core.errors import LossError

_KEYS = ("logits", "predictions", "prediction", "output", "out")


def main_tensor(predictions: Any, loss: str) -> Tensor:
    """The tensor a task loss scores: the output itself, `logits` in a mapping, or the first of a sequence.

    >>> import torch
    >>> main_tensor({"logits": torch.zeros(2, 3), "hidden": None}, "cross_entropy").shape
    torch.Size([2, 3])
    """
    if isinstance(predictions, Tensor):
        return predictions
    if isinstance(predictions, Mapping):
        for key in _KEYS:
            if isinstance(found := predictions.get(key), Tensor):
                return found
        raise LossError(
            f"loss {loss!r} found none of {', '.join(_KEYS)} in the target's output, which has "
            f"{', '.join(map(str, predictions))}: pass a loss of your own"
        )
    if isinstance(predictions, tuple | list) and predictions:
        return main_tensor(predictions[0], loss)
    raise LossError(
        f"loss {loss!r} cannot score an output of type {type(predictions).__name__}: pass a loss of your own"
    )


def require_tensor(targets: Any, loss: str) -> Tensor:
    """The targets as one tensor."""
    if isinstance(targets, Tensor):
        return targets
    raise LossError(
        f"loss {loss!r} needs targets as a tensor, the batch gave {type(targets).__name__}: "
        "let the loader yield (inputs, targets), or pass batch_adapter="
    )
