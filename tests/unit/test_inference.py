"""`WeightCache`: weights are generated once for a latent, and never given for another."""

from __future__ import annotations

import copy
import pickle
import threading
import time

import pytest
import torch
from torch import Tensor

from mapping_core.target.inference import WeightCache


class Generator:
    """Makes weights of the latent it holds, and counts."""

    def __init__(self) -> None:
        self.latent = torch.arange(3.0, requires_grad=True)
        self.count = 0

    def __call__(self) -> dict[str, Tensor]:
        self.count += 1
        return {"w": self.latent * 2}


def test_once_for_a_latent() -> None:
    """The same latent, or an equal one, gets the same tensors; another gets new ones."""
    cache, generator = WeightCache(), Generator()
    first = cache.get(generator.latent, (), generator)
    assert cache.get(generator.latent.detach().clone(), (), generator) is first
    assert generator.count == 1
    generator.latent.data[1] = 7
    assert cache.get(generator.latent, (), generator)["w"].tolist() == [0, 14, 4]
    assert generator.count == 2


def test_whatever_else_it_depends_on() -> None:
    """Other version counters mean other weights, and so does `clear`."""
    cache, generator = WeightCache(), Generator()
    for versions in ((), (1,), (2,), (2,)):
        cache.get(generator.latent, versions, generator)
    assert generator.count == 3
    cache.clear()
    cache.get(generator.latent, (2,), generator)
    assert generator.count == 4


def test_a_nan_is_never_kept() -> None:
    """A latent with NaN is generated anew each time."""
    cache, generator = WeightCache(), Generator()
    generator.latent.data[0] = torch.nan
    for _ in range(3):
        cache.get(generator.latent, (), generator)
    assert generator.count == 3


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_ordinary_tensors_without_a_graph(mode: type[torch.no_grad]) -> None:
    """Whatever mode they are made in, the weights carry no graph and may be used in any other."""
    cache, generator = WeightCache(), Generator()
    with mode():
        weight = cache.get(generator.latent, (), generator)["w"]
    assert not weight.is_inference()
    assert weight.grad_fn is None
    (weight * torch.ones(3, requires_grad=True)).sum().backward()  # type: ignore[no-untyped-call]


def test_a_failure_keeps_what_there_was() -> None:
    """A generator that raises leaves the old weights for the old latent."""
    cache, generator = WeightCache(), Generator()
    first = cache.get(generator.latent, (), generator)

    def fail() -> dict[str, Tensor]:
        raise RuntimeError("no memory")

    with pytest.raises(RuntimeError, match="no memory"):
        cache.get(torch.ones(3), (), fail)
    assert cache.get(generator.latent, (), generator) is first


def test_copies_start_empty() -> None:
    """A copy and a pickle hold no weights, and work."""
    cache, generator = WeightCache(), Generator()
    cache.get(generator.latent, (), generator)
    for twin in (copy.deepcopy(cache), pickle.loads(pickle.dumps(cache))):  # noqa: S301 - our own bytes
        generator.count = 0
        twin.get(generator.latent, (), generator)
        assert generator.count == 1


def test_threads_wait_for_the_one_that_generates() -> None:
    """Eight threads at once get one dictionary."""
    cache, generator = WeightCache(), Generator()

    def slowly() -> dict[str, Tensor]:
        time.sleep(0.02)
        return generator()

    found: list[dict[str, Tensor]] = []
    threads = [threading.Thread(target=lambda: found.append(cache.get(generator.latent, (), slowly))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert generator.count == 1
    assert len(found) == 8
    assert all(each is found[0] for each in found)
