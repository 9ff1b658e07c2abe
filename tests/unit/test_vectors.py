"""Latent vectors: all that trains, flat; to average, to keep for each user, to run many at once."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mapping_core import BudgetError, MappingModel, MappingTrainer
from tests import targets

X = torch.randn(5, 6, generator=torch.Generator().manual_seed(1))


def model_of(seed: int = 0) -> MappingModel:
    """Return a model with 16 numbers, 3 of which are a bias that trains directly; none of them 0."""
    model = MappingModel(targets.mlp(), 16, trained="2.bias")
    vector = torch.randn(16, generator=torch.Generator().manual_seed(seed))
    model.load_latent_vector(vector)
    return model


def test_there_and_back() -> None:
    """The vector holds the latent and what trains directly, 16 numbers, and another model takes it over."""
    one, two = model_of(0), model_of(1)
    vector = one.latent_vector()
    assert vector.shape == (16,) == (sum(p.numel() for p in one.parameters()),)
    assert not vector.requires_grad
    two.load_latent_vector(vector)
    assert torch.equal(two(X), one(X))
    with torch.no_grad():
        vector.zero_()
    assert torch.equal(two(X), one(X))


def test_forward_with_is_the_model_under_another_vector() -> None:
    """`forward_with` gives what a model that holds the vector gives, differentiably, and changes nothing."""
    one, two = model_of(0), model_of(1)
    before = one.latent_vector()
    vector = two.latent_vector().requires_grad_()
    assert torch.equal(one.forward_with(vector, X), two(X))
    assert torch.equal(one.latent_vector(), before)
    double, x = model_of(0).double(), X.double()
    assert torch.autograd.gradcheck(lambda v: double.forward_with(v, x), vector.detach().double().requires_grad_())


def test_stack() -> None:
    """A stack runs several vectors at once, each as if alone."""
    models = [model_of(seed) for seed in range(3)]
    outputs: Tensor = models[0].stack([each.latent_vector() for each in models])(X)
    for output, model in zip(outputs, models, strict=True):
        torch.testing.assert_close(output, model(X))


@pytest.mark.parametrize(
    "vector", [torch.zeros(15), torch.zeros(1, 16), torch.full((16,), float("nan")), torch.zeros(())]
)
def test_vectors_that_do_not_fit(vector: Tensor) -> None:
    """A vector of another size, or with NaN, is refused with its shape and changes nothing."""
    model = model_of()
    before = model.latent_vector()
    with pytest.raises(BudgetError, match="latent vector"):
        model.load_latent_vector(vector)
    assert torch.equal(model.latent_vector(), before)


def test_directly_trained_parameters_train_and_count() -> None:
    """What trains directly counts in latent_dim, starts as it is, and moves in training."""
    target = targets.mlp()
    model = MappingModel(target, 16, trained="2.bias", frozen="0")
    assert torch.equal(model(X), target(X))
    assert sum(p.numel() for p in model.parameters()) == 16
    MappingTrainer(model, targets.loader(), max_epochs=2, seed=0, accelerator="cpu", progress=False).fit()
    exported = dict(model.export().named_parameters())
    moved = {name for name, base in target.named_parameters() if not torch.equal(exported[name], base)}
    assert moved == {"2.weight", "2.bias"}
    with pytest.raises(BudgetError, match="latent_dim=3 counts what trains directly too, and that is 3 numbers"):
        MappingModel(target, 3, trained="2.bias")


def test_kept_weights_are_never_stale() -> None:
    """In evaluation mode without a gradient outputs follow every way of writing the latent, the mode and the dtype."""
    model = model_of().eval()
    with torch.no_grad():
        first = model(X)
        assert torch.equal(model(X), first)
        model.latent.data.add_(1)
        second = model(X)
        assert not torch.equal(second, first)
        model.load_latent_vector(model_of().latent_vector())
        assert torch.equal(model(X), first)
        assert model.double()(X.double()).dtype == torch.float64
    with torch.inference_mode():
        inferred = model_of().eval()(X)
    assert torch.equal(inferred, first)


def test_summary() -> None:
    """The summary lists every parameter with what feeds it, and the totals."""
    lines = MappingModel(targets.mlp(), 16, trained="2.bias", frozen="0.bias").summary()
    for part in ("0.weight", "latent 0", "nothing (frozen)", "itself (trained)", "83 weights, 16 trainable numbers"):
        assert part in lines


def test_forward_with_covers_what_trains_directly() -> None:
    """A vector replaces directly trained parameters too, and its gradient has them at its end."""
    model = model_of()
    vector = torch.zeros(16, requires_grad=True)
    target = targets.mlp()
    with torch.no_grad():
        target.get_parameter("2.bias").zero_()
    output = model.forward_with(vector, X)
    torch.testing.assert_close(output, target(X))
    output.sum().backward()
    assert vector.grad is not None
    assert vector.grad[-3:].tolist() == [5.0, 5.0, 5.0]
    assert model.latent.grad is None


@pytest.mark.parametrize("shape", [(2, 16), (15,), (17,), ()])
def test_forward_with_one_vector_at_a_time(shape: tuple[int, ...]) -> None:
    """Another size, or several vectors without `vmap`, is refused with the shape."""
    with pytest.raises(BudgetError, match="a latent vector has 16 numbers, got shape"):
        model_of().forward_with(torch.zeros(shape), X)


def test_loading_is_all_or_nothing() -> None:
    """A vector with an infinity at its very end changes no number before it."""
    model = model_of()
    before = model.latent_vector()
    bad = torch.zeros(16)
    bad[-1] = torch.inf
    with pytest.raises(BudgetError, match="finite numbers, 1 of 16 are not"):
        model.load_latent_vector(bad)
    with pytest.raises(BudgetError, match=r"a latent vector is a tensor .*, got list"):
        model.load_latent_vector([0.0] * 16)  # type: ignore[arg-type]
    with pytest.raises(BudgetError, match="at least one latent vector"):
        model.stack([])
    assert torch.equal(model.latent_vector(), before)


def test_vectors_of_other_dtypes() -> None:
    """A vector of another dtype is taken over in the dtypes of the model, whose parameters stay the same objects."""
    model = model_of()
    parameters = list(model.parameters())
    model.load_latent_vector(torch.arange(16, dtype=torch.float64, requires_grad=True))
    assert [parameter.dtype for parameter in model.parameters()] == [torch.float32] * 2
    assert all(a is b for a, b in zip(model.parameters(), parameters, strict=True))
    assert model.latent_vector().tolist() == list(range(16))


def test_averaging() -> None:
    """Federated use: the mean of two vectors is the model whose numbers are the means."""
    one, two, mean = model_of(0), model_of(1), model_of(2)
    mean.load_latent_vector((one.latent_vector() + two.latent_vector()) / 2)
    for a, b, m in zip(
        one.generate_weights().values(), two.generate_weights().values(), mean.generate_weights().values(), strict=True
    ):
        torch.testing.assert_close((a + b) / 2, m)


def test_stacks_in_evaluation_with_norms_and_dropout() -> None:
    """In evaluation mode a stack runs targets with norms and dropout; keyword arguments are shared."""
    torch.manual_seed(0)
    target = torch.nn.Sequential(targets.estimated_conv_norm(), torch.nn.Dropout(0.5))
    model = MappingModel(target, 16).eval()
    x = torch.randn(4, 1, 6, 6)
    vectors = [torch.randn(16) for _ in range(3)]
    outputs = model.stack(vectors)(input=x)
    for output, vector in zip(outputs, vectors, strict=True):
        torch.testing.assert_close(output, model.forward_with(vector, x))


def test_the_gradient_of_a_stack() -> None:
    """A stack is differentiable in its vectors, each apart from the others."""
    model = MappingModel(targets.mlp(), 16)
    vectors = torch.randn(2, 16, requires_grad=True)
    model.stack(list(vectors))(X)[0].sum().backward()
    assert vectors.grad is not None
    assert vectors.grad[0].any()
    assert not vectors.grad[1].any()
