"""Memory of weights that is used again, and never while somebody holds it."""

from __future__ import annotations

import copy
import gc
import threading
from unittest import mock

import pytest
import torch
from torch import Tensor

from mapping_core import MappingModel, memory
from mapping_core.memory import memory_for
from tests import targets


def test_used_again_when_nobody_holds_it() -> None:
    """Weights of one base take the place of those before, once these are gone; others' never."""
    base, other = torch.zeros(3, 4), torch.zeros(3, 4, dtype=torch.float64)
    first = memory_for(base)
    place = first.data_ptr()
    assert (first.shape, first.dtype, first.is_contiguous()) == (base.shape, base.dtype, True)
    assert memory_for(other).dtype == torch.float64
    assert memory_for(base).data_ptr() != place
    del first
    assert memory_for(base).data_ptr() == place


@pytest.mark.parametrize(
    "hold", [lambda t: t[1:], lambda t: t.detach(), lambda t: t.numpy(), lambda t: t.mT, copy.copy]
)
def test_whatever_holds_it_keeps_it(hold) -> None:  # type: ignore[no-untyped-def]
    """A view, a detached twin or an array of weights keeps their values."""
    base = torch.zeros(3, 4)
    kept = hold(memory_for(base).fill_(7.0))
    memory_for(base).fill_(1.0)
    assert (kept == 7).all()
    del kept
    memory_for(base).fill_(2.0)


def test_a_graph_keeps_it() -> None:
    """What autograd saved for a backward pass is not written over, and is free after it."""
    base = torch.zeros(3)
    x = torch.ones(3, requires_grad=True)
    weight = memory_for(base).fill_(5.0)
    place = weight.data_ptr()
    out = (x * weight).sum()
    del weight
    memory_for(base).fill_(1.0)
    out.backward()  # type: ignore[no-untyped-call]
    assert x.grad is not None
    assert x.grad.tolist() == [5, 5, 5]
    del out
    assert memory_for(base).data_ptr() == place


def test_it_goes_with_its_base() -> None:
    """Memory is kept no longer than the base it belongs to, or what stands in it."""
    base = torch.zeros(5)
    weight = memory_for(base).fill_(3.0)
    kept = len(memory._of_base)
    del base
    gc.collect()
    assert len(memory._of_base) == kept - 1
    assert weight.tolist() == [3] * 5


def test_threads_get_different_memory() -> None:
    """Of many threads that ask at once, no two get the same."""
    base = torch.zeros(100)
    made: list[Tensor] = []
    threads = [threading.Thread(target=lambda: made.extend(memory_for(base) for _ in range(50))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({tensor.data_ptr() for tensor in made}) == 400


def test_a_model_trains_in_it() -> None:
    """Step after step, the weights of a model stand in the same place, and its gradients are those without it."""
    with mock.patch("mapping_core.affine._CACHED", 10), mock.patch("mapping_core.expansion.WORTH_ONE_PASS", 0):
        model = targets.moved(MappingModel(targets.mlp(), 16, "slvt"))
        places = set()
        for _ in range(3):
            weights = model.generate_weights()
            places.add(weights["0.weight"].data_ptr())
            sum(weight.square().sum() for weight in weights.values()).backward()  # type: ignore[union-attr]
            del weights
    assert len(places) == 1
    assert model.latent.grad is not None
    found = model.latent.grad / 3
    model.latent.grad = None
    sum(weight.square().sum() for weight in model.generate_weights().values()).backward()  # type: ignore[union-attr]
    torch.testing.assert_close(found, model.latent.grad)
