"""P16: inference with batches of one. Source: packages that generate all weights for each of a hundred calls."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mapping_core import MappingModel
from mapping_core.reference.models import CNN2
from tests import targets

X = torch.randn(1, 6, generator=torch.Generator().manual_seed(1))


class Counted:
    """A model in evaluation mode, and how often it generated."""

    def __init__(self, target: nn.Module, **options: Any) -> None:
        self.model = targets.moved(MappingModel(target, 20, **options)).eval()
        self.count = 0
        self.model.generator.register_forward_hook(self._note)

    def _note(self, *_: Any) -> None:
        self.count += 1

    def right(self, x: Tensor = X) -> Tensor:
        """Return what a freshly exported module computes, which nothing stale can reach."""
        count = self.count
        output: Tensor = self.model.export()(x)
        self.count = count
        return output


@pytest.fixture
def counted() -> Counted:
    """Give a small model."""
    return Counted(targets.mlp())


@pytest.fixture(params=[torch.no_grad, torch.inference_mode])
def inferring(request: pytest.FixtureRequest) -> Iterator[None]:
    """Be in one of the two ways of inferring."""
    with request.param():
        yield


@pytest.mark.usefixtures("inferring")
def test_a_hundred_calls() -> None:
    """CNN2 generates its weights once for a hundred calls."""
    counted = Counted(CNN2())
    x = torch.randn(1, 1, 28, 28)
    outputs = [counted.model(x) for _ in range(100)]
    assert counted.count == 1
    assert all(torch.equal(output, outputs[0]) for output in outputs)
    torch.testing.assert_close(outputs[0], counted.right(x))


def by_optimizer(model: MappingModel) -> None:
    """Step an optimiser."""
    with torch.inference_mode(False), torch.enable_grad():
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        model(X.clone()).sum().backward()
        optimizer.step()


def by_data(model: MappingModel) -> None:
    """Write past autograd's version counter."""
    model.latent.data.add_(1)


def by_replacing_data(model: MappingModel) -> None:
    """Put another storage in place."""
    model.latent.data = torch.ones(20)


def by_replacing_the_parameter(model: MappingModel) -> None:
    """Put another parameter in place."""
    model.latent = nn.Parameter(torch.ones(20))


def by_one_number(model: MappingModel) -> None:
    """Write a single number through the view of one layer's latent."""
    with torch.no_grad():
        next(iter(model.latents.values()))[0] += 1


def by_numpy(model: MappingModel) -> None:
    """Write through memory shared with NumPy."""
    model.latent.detach().numpy()[3] = 2


CHANGES: list[Callable[[MappingModel], object]] = [
    by_optimizer,
    by_data,
    by_replacing_data,
    by_replacing_the_parameter,
    by_one_number,
    by_numpy,
    lambda model: model.load_latent_vector(torch.ones(20)),
    lambda model: model.load_state_dict({"latent": torch.ones(20)}),
]


@pytest.mark.parametrize("change", CHANGES)
def test_never_stale(counted: Counted, change: Callable[[MappingModel], object]) -> None:
    """Whatever writes the latent, the next call computes with it, and generates once more."""
    with torch.no_grad():
        before = counted.model(X)
    change(counted.model)
    counted.count = 0
    with torch.no_grad():
        outputs = [counted.model(X) for _ in range(3)]
    assert counted.count == 1
    assert not torch.equal(outputs[0], before)
    assert all(torch.equal(output, counted.right()) for output in outputs)


@pytest.mark.usefixtures("inferring")
def test_conversions_and_modes(counted: Counted) -> None:
    """After `.to()` and `train()` weights are generated anew, in the new dtype; training mode keeps none."""
    model = counted.model
    model(X)
    assert model.double()(X.double()).dtype == torch.float64
    assert counted.count == 2
    model.float()
    model.train()
    model(X)
    model(X)
    assert counted.count == 4
    model.eval()
    model(X)
    model(X)
    assert counted.count == 5
    torch.testing.assert_close(model(X), counted.right())


def test_ways_to_infer_share_the_weights(counted: Counted) -> None:
    """What was generated under one of inference_mode and no_grad serves under the other, and for a gradient later."""
    with torch.inference_mode():
        first = counted.model(X)
    with torch.no_grad():
        assert torch.equal(counted.model(X), first)
    assert counted.count == 1
    x = X.clone().requires_grad_()
    counted.model(x).sum().backward()
    assert counted.count == 2
    assert x.grad is not None
    assert counted.model.latent.grad is not None
    counted.model.requires_grad_(False)
    counted.model(x).sum().backward()
    counted.model(x).sum().backward()
    assert counted.count == 2


def test_from_four_threads(counted: Counted) -> None:
    """Four threads at once generate once and compute right, each on its own input; with another latent once more."""
    inputs = [torch.randn(3, 6, generator=torch.Generator().manual_seed(seed)) for seed in range(4)]
    for seed in (0, 1):
        targets.moved(counted.model, seed=seed)
        counted.count = 0
        expected = [counted.right(x) for x in inputs]
        wrong: list[int] = []
        barrier = threading.Barrier(4)

        def run(
            index: int,
            expected: list[Tensor] = expected,
            wrong: list[int] = wrong,
            barrier: threading.Barrier = barrier,
        ) -> None:
            barrier.wait()
            with torch.inference_mode() if index % 2 else torch.no_grad():
                for _ in range(25):
                    if not torch.equal(counted.model(inputs[index]), expected[index]):
                        wrong.append(index)

        threads = [threading.Thread(target=run, args=(index,)) for index in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert not wrong
        assert counted.count == 1


@pytest.mark.parametrize("context", [nullcontext, torch.no_grad])
def test_transforms_and_tangents_get_their_own_weights(counted: Counted, context: Callable[[], Any]) -> None:
    """`vmap` and `jvp` over the latent, and forward-mode tangents, are right although weights are kept."""
    model = counted.model
    vectors = torch.randn(3, 20)

    def run(vector: Tensor) -> Tensor:
        output: Tensor = torch.func.functional_call(model, {"latent": vector}, (X,))
        return output

    expected = torch.stack([run(vector) for vector in vectors])
    tangent = torch.func.jvp(run, (vectors[0],), (vectors[1],))[1]
    with context():
        model(X)
        torch.testing.assert_close(torch.func.vmap(run)(vectors), expected)
        torch.testing.assert_close(torch.func.jvp(run, (vectors[0],), (vectors[1],))[1], tangent)
        torch.testing.assert_close(torch.func.jvp(model, (X,), (X,))[0], model(X))
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(vectors[0], vectors[1])  # type: ignore[no-untyped-call]
            made = torch.autograd.forward_ad.unpack_dual(run(dual))  # type: ignore[no-untyped-call]
            torch.testing.assert_close(made.tangent, tangent)
        torch.testing.assert_close(model(X), counted.right())


def test_a_shared_base_that_changes() -> None:
    """With a shared base, an in-place change of the user's weights is seen by the next call."""
    target = targets.mlp()
    counted = Counted(target, share_base=True)
    with torch.no_grad():
        counted.model(X)
        target.get_parameter("0.weight").mul_(2)
        torch.testing.assert_close(counted.model(X), counted.right())


def test_a_copy_and_a_nan(counted: Counted) -> None:
    """A copy does not answer for its original; a latent with NaN is never answered from memory."""
    with torch.no_grad():
        counted.model(X)
        twin = copy.deepcopy(counted.model)
        targets.moved(twin, seed=1)
        assert not torch.equal(twin(X), counted.model(X))
        counted.model.latent[0] = torch.nan
        counted.count = 0
        assert counted.model(X).isnan().any()
        assert counted.model(X).isnan().any()
        assert counted.count == 2


RECURRENT: list[Callable[[], nn.Module]] = [
    lambda: nn.LSTM(6, 5, num_layers=2, bidirectional=True),
    lambda: nn.LSTM(6, 5, proj_size=3),
    lambda: nn.GRU(6, 5),
    lambda: nn.RNN(6, 5),
]


@pytest.mark.usefixtures("inferring")
@pytest.mark.parametrize("make", RECURRENT)
def test_a_module_that_keeps_a_list_of_its_weights(make: Callable[[], nn.Module]) -> None:
    """Recurrent layers, which remember the weights of their last call, run again under the same and under others."""
    torch.manual_seed(0)
    counted = Counted(make())
    for calls in (3, 2):
        for _ in range(calls):
            assert torch.equal(counted.model(X[None])[0], counted.right(X[None])[0])
        counted.model.latent.data += 0.5
    assert counted.count == 2
