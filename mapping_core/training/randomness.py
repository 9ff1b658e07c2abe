"""The state of all random generators that a run draws from: taken, and put back."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import numpy
import torch


def seed_everything(seed: int | None) -> None:
    """Seed Python's, NumPy's and torch's generators; None leaves them as they are."""
    if seed is not None:
        random.seed(seed)
        numpy.random.seed(seed % 2**32)
        torch.manual_seed(seed)


def random_state(loader: Iterable[Any] = ()) -> dict[str, Any]:
    """The states of Python's, NumPy's and torch's generators, each device's, and those of a loader's own.

    Plain values and tensors on the CPU, whatever device they speak of.
    """
    version, words, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = cast("tuple[str, Any, int, int, float]", numpy.random.get_state())
    return {
        "python": (version, torch.tensor(words), gauss),
        "numpy": (str(kind), torch.from_numpy(keys.astype("int64")), int(position), int(has_gauss), float(cached)),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "loader": [generator.get_state() for generator in _generators_of(loader)],
    }


def set_random_state(state: dict[str, Any], loader: Iterable[Any] = ()) -> None:
    """Put back what `random_state` took; devices that are not here are left out."""
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words.tolist()), gauss))
    kind, keys, position, has_gauss, cached = state["numpy"]
    numpy.random.set_state((kind, keys.numpy().astype("uint32"), position, has_gauss, cached))
    torch.set_rng_state(state["torch"])
    for index, device_state in enumerate(state["cuda"][: torch.cuda.device_count()]):
        torch.cuda.set_rng_state(device_state, index)
    for generator, own in zip(_generators_of(loader), state["loader"], strict=False):
        generator.set_state(own)


@contextmanager
def undisturbed(loader: Iterable[Any] = ()) -> Iterator[None]:
    """Put all generators back afterwards, for what only looks on."""
    before = random_state(loader)
    try:
        yield
    finally:
        set_random_state(before, loader)


def _generators_of(loader: Iterable[Any]) -> list[torch.Generator]:
    """The generators that a loader and its samplers have of their own, each once."""
    places: list[Any] = [loader]
    for place in places:  # grows: a sampler may hold another
        places += [
            each for name in ("sampler", "batch_sampler") if (each := getattr(place, name, None)) not in (None, *places)
        ]
    found = [getattr(place, "generator", None) for place in places]
    return list({id(each): each for each in found if isinstance(each, torch.Generator)}.values())
