"""What a loader yields, as inputs for the target and targets for the loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from attrs import define

from mapping_core.errors import DataError

#: Keys under which a batch in dictionary form may hold its targets, in this order.
TARGET_KEYS = ("labels", "label", "targets", "target", "y")


@define(frozen=True, eq=False)
class Batch:
    """Positional and keyword inputs of the target, and the targets of the loss."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    targets: Any


def adapt_batch(batch: Any) -> Batch:
    """The usual batch forms: ``(x, y)``, ``(x1, x2, ..., y)``, or a dictionary with a key of `TARGET_KEYS`.

    In a dictionary, everything but the targets goes to the target as keyword arguments.

    >>> adapt_batch({"x": 1, "mask": 2, "y": 3})
    Batch(args=(), kwargs={'x': 1, 'mask': 2}, targets=3)
    """
    if isinstance(batch, Batch):
        return batch
    if isinstance(batch, Mapping):
        for key in TARGET_KEYS:
            if key in batch:
                return Batch((), {name: value for name, value in batch.items() if name != key}, batch[key])
        raise DataError(
            f"a batch with the keys {', '.join(map(str, batch))} has none of {', '.join(TARGET_KEYS)} for its targets: "
            "rename one, or pass batch_adapter="
        )
    if isinstance(batch, tuple | list) and len(batch) >= 2:
        return Batch(tuple(batch[:-1]), {}, batch[-1])
    raise DataError(
        f"a batch must be (inputs, targets) or a dictionary, the loader gave {type(batch).__name__}"
        + (f" of length {len(batch)}" if isinstance(batch, tuple | list) else "")
        + ": change the data set, or pass batch_adapter="
    )


def adapted_inputs(adapter: Callable[[Any], Any], batch: Any) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """The inputs of a batch by an adapter, which is asked whatever the batch's form."""
    adapted = checked(adapter(batch))
    return adapted.args, adapted.kwargs


def checked(batch: Any) -> Batch:
    """What a batch adapter returned, which may be one of the usual forms; raises `DataError` if it is none."""
    if isinstance(batch, Batch):
        return batch
    try:
        return adapt_batch(batch)
    except DataError as error:
        raise DataError(
            f"batch_adapter must return a mapping_core.Batch(args, kwargs, targets), or (inputs, targets): {error}"
        ) from error


def inputs_of(batch: Any) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """The positional and keyword inputs of a batch, which may also be bare inputs without targets.

    >>> inputs_of({"x": 1}), inputs_of((1, 2))
    (((), {'x': 1}), ((1,), {}))
    """
    if isinstance(batch, Batch | tuple | list):
        if not isinstance(batch, Batch) and len(batch) == 1:
            return tuple(batch), {}
        adapted = adapt_batch(batch)
        return adapted.args, adapted.kwargs
    if isinstance(batch, Mapping):
        return (), {name: value for name, value in batch.items() if name not in TARGET_KEYS}
    return (batch,), {}
