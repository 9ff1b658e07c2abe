"""`MappingModel`: an ordinary module whose only parameter is the latent."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Mapping
from typing import Any

import numpy
import pytest
import torch
from attrs import define
from torch import Tensor, nn

import mapping_core.builtin
from mapping_core import (
    BudgetError,
    ConfigError,
    Generator,
    GeneratorConfig,
    MappingModel,
    PluginError,
    Registry,
    TargetError,
    UnknownComponentError,
    hookimpl,
)
from mapping_core.builtin.mappers import Orthogonal, Srht
from mapping_core.contexts import GeneratorContext
from tests import targets

X = torch.randn(5, 6, generator=torch.Generator().manual_seed(1))


def moved(model: MappingModel, *, seed: int = 0) -> MappingModel:
    """Return the model with a latent that is not 0."""
    with torch.no_grad():
        model.latent.normal_(generator=torch.Generator().manual_seed(seed))
    return model


def test_only_the_latent_is_listed_and_saved() -> None:
    """`parameters()` and `state_dict()` hold the latent (and tracked buffers), never base or weights."""
    model = MappingModel(targets.conv_norm(), 20)
    assert {name: p.numel() for name, p in model.named_parameters()} == {"latent": 20}
    assert set(model.state_dict()) == {
        "latent",
        "target.tracked.1.running_mean",
        "target.tracked.1.running_var",
        "target.tracked.1.num_batches_tracked",
    }


def test_weights_are_base_plus_scaled_mapping() -> None:
    """Weights are theta_0 + scale * G z, parameter by parameter, in the order of the layout."""
    target = targets.mlp()
    model = moved(MappingModel(target, 16, "slvt"))
    made = model.generator.get_submodule("expansion.mapper")(model.latent)
    for spec, piece in zip(model.layout.mapped, torch.split(made, [48, 8, 24, 3]), strict=True):
        expected = target.get_parameter(spec.name) + spec.scale * piece.view(spec.shape)
        torch.testing.assert_close(model.generate_weights()[spec.name], expected)


def test_latents_are_views_and_generate_takes_others() -> None:
    """`latents` are views of the one vector; `generate_weights` works under given ones and leaves the model alone."""
    model = moved(MappingModel(targets.mlp(), 20))
    assert torch.equal(torch.cat(list(model.latents.values())), model.latent)
    before = model.latent_vector()
    zero = {name: torch.zeros_like(z) for name, z in model.latents.items()}
    base = model.generate_weights(zero)
    assert torch.equal(base["0.weight"], targets.mlp().get_parameter("0.weight"))
    assert torch.equal(model.latent_vector(), before)
    assert not model.latent_vector().requires_grad
    with torch.no_grad():
        model.latents["0"].add_(1)
    assert not torch.equal(model.latent_vector(), before)


def test_many_models_at_once() -> None:
    """`vmap` over latents runs many models, each equal to its own."""
    model = MappingModel(targets.mlp(), 16)
    z = torch.randn(4, 16)
    run = torch.func.vmap(lambda z: torch.func.functional_call(model, {"latent": z}, (X,)))
    one = moved(model)
    with torch.no_grad():
        one.latent.copy_(z[2])
    torch.testing.assert_close(run(z)[2], one(X))


def test_gradient_is_the_chain_rule() -> None:
    """In float64 the latent's gradient is that of finite differences."""
    model = moved(MappingModel(targets.mlp(), 7).double())

    def loss(z: Tensor) -> Tensor:
        out: Tensor = torch.func.functional_call(model, {"latent": z}, (X.double(),))
        return out.square().mean()

    assert torch.autograd.gradcheck(loss, model.latent_vector().requires_grad_())


@pytest.mark.parametrize("strategy", ["slvt", "layerwise"])
@pytest.mark.parametrize("mapper", ["orthogonal", {"type": "srht"}, Srht()])
def test_component_spellings(strategy: str, mapper: object) -> None:
    """A component is given by name, as table, or as object, and is known by role with its supplier."""
    model = MappingModel(targets.mlp(), 16, strategy, mapper=mapper)  # type: ignore[arg-type]
    assert model.mapper == (Orthogonal() if mapper == "orthogonal" else Srht())
    assert set(model.components()) == {"strategy", "mapper"}
    assert str(model.suppliers["strategy"]).startswith(f"mapping-plugin-{strategy} ")
    assert f"latent_dim=16, strategy={model.strategy!r}" in repr(model)


def test_seed_selects_the_mapping() -> None:
    """One seed, one mapping; another seed, another, from the same start."""
    same, again, other = (moved(MappingModel(targets.mlp(), 16, seed=seed)) for seed in (3, 3, 2**64 - 1))
    assert torch.equal(same(X), again(X))
    assert not torch.equal(same(X), other(X))


def test_copies_after_backward() -> None:
    """`deepcopy` and `pickle` after a backward give models that are equal and independent."""
    model = moved(MappingModel(targets.Residual(), 20))
    model(X).sum().backward()
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):  # noqa: S301 - our own bytes
        assert torch.equal(twin(X), model(X))
        twin.double()
        assert twin(X.double()).dtype == torch.float64
        assert model(X).dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_conversion(dtype: torch.dtype) -> None:
    """`.to(dtype)` converts base and output; the output stays that of the converted target."""
    model = moved(MappingModel(targets.mlp(), 16))
    expected = model(X)
    made = model.to(dtype)(X.to(dtype))
    assert made.dtype == dtype
    torch.testing.assert_close(made.float(), expected, atol=0.1, rtol=0.05)


def test_autocast_leaves_the_mapping_alone() -> None:
    """Inside autocast the target computes in bfloat16, the weights are generated in float32 all the same."""
    model = moved(MappingModel(targets.mlp(), 16))
    plain = model.generate_weights()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = model.generate_weights()
        assert model(X).dtype == torch.bfloat16
    assert all(torch.equal(cast[name], plain[name]) for name in plain)


@pytest.mark.parametrize("make", [targets.mlp, targets.conv_norm, targets.Tied])
def test_compiled_model(make: type[nn.Module]) -> None:
    """A compiled model gives the same output, gradient and tracked statistics."""
    torch.compiler.reset()
    case = next(case for case in targets.CASES if case.make is make)
    model, twin = moved(MappingModel(make(), 16)), moved(MappingModel(make(), 16))
    compiled = torch.compile(model, backend="aot_eager")
    x = case.inputs()
    compiled(x).sum().backward()
    twin(x).sum().backward()
    torch.testing.assert_close(model.latent.grad, twin.latent.grad)
    for name, value in twin.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], value)


def test_padding_stays() -> None:
    """The padding row of an embedding, which training never moves, is not moved by the mapping."""
    target = nn.Sequential(nn.Embedding(7, 4, padding_idx=2), nn.Linear(4, 3))
    weight = moved(MappingModel(target, 16)).generate_weights()["0.weight"]
    changed = (weight != target.get_parameter("0.weight")).any(dim=1)
    assert changed.tolist() == [True, True, False, True, True, True, True]


def test_export_state_dict() -> None:
    """The exported tensors go into the target's own class by `load_state_dict`."""
    model = moved(MappingModel(targets.conv_norm(), 16)).eval()
    twin = targets.conv_norm().eval()
    twin.load_state_dict(model.export_state_dict())
    x = torch.randn(3, 1, 6, 6)
    assert torch.equal(twin(x), model(x))


def test_mapping_bytes() -> None:
    """The frozen state of the mapping is counted: n x d floats for the dense reference."""
    assert MappingModel(targets.mlp(), 16, "slvt", mapper="orthogonal").mapping_bytes() == 4 * 16 * 83


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"latent_dim": 0}, BudgetError, "latent_dim must be an integer of at least 1, got 0"),
        ({"latent_dim": -3}, BudgetError, "got -3"),
        ({"latent_dim": 2.0}, BudgetError, r"got 2\.0"),
        ({"latent_dim": True}, BudgetError, "got True"),
        ({"latent_dim": 84}, BudgetError, "latent_dim=84 is more than the target's 83 mapped weights"),
        ({"latent_dim": 1}, BudgetError, "latent_dim=1 is less than the target's 2 layers"),
        ({"strategy": "slvtt"}, UnknownComponentError, "strategy: no generator named 'slvtt'.*did you mean 'slvt'"),
        ({"mapper": "srth"}, UnknownComponentError, "mapper: no mapper named 'srth'.*did you mean 'srht'"),
        ({"modulation": "none"}, UnknownComponentError, "modulation: no modulation named 'none'"),
        ({"base": "random"}, ConfigError, "base: 'random' is not one of current"),
        ({"seed": -1}, ConfigError, "seed: must be an integer in"),
        ({"seed": 2**64}, ConfigError, "seed: must be an integer in"),
        ({"seed": "7"}, ConfigError, "seed: .*got '7'"),
        ({"target_model": nn.Linear}, TargetError, "target_model must be a torch.nn.Module, got type"),
        ({"target_model": nn.Flatten()}, TargetError, "Flatten has no parameter to map"),
    ],
)
def test_refusals(arguments: dict[str, object], error: type[Exception], message: str) -> None:
    """A wrong argument is one line that names it, what was given, and what is possible."""
    given = {"target_model": targets.mlp(), "latent_dim": 16, **arguments}
    with pytest.raises(error, match=message) as caught:
        MappingModel(**given)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


@define(frozen=True, kw_only=True)
class Broken(GeneratorConfig):
    """A strategy that breaks the contract in one way."""

    name = "broken"
    fault: str

    def build(self, context: GeneratorContext) -> Generator:
        return BrokenGenerator(context, self.fault)


class BrokenGenerator(Generator):
    """One expansion over all weights, or nearly."""

    def __init__(self, context: GeneratorContext, fault: str) -> None:
        super().__init__()
        specs = context.layout.mapped
        self.expansion = context.expansion(
            specs[1:] if fault == "forgets" else specs, context.latent_dim - (fault == "spares"), stream=0
        )
        if fault == "trains":
            self.extra = nn.Parameter(torch.zeros(3))

    @property
    def latent_sizes(self) -> dict[str, int]:
        return {"z": self.expansion.latent_size}

    def forward(self, latents: Mapping[str, Tensor], base: Mapping[str, Tensor]) -> dict[str, Tensor]:
        raise NotImplementedError

    def assignment(self) -> dict[str, tuple[str, ...]]:
        return {"z": self.expansion.names}


@hookimpl
def mapping_generators() -> list[type[GeneratorConfig]]:
    """Register the broken strategy."""
    return [Broken]


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("spares", "strategy 'broken' uses 15 numbers instead of latent_dim=16"),
        ("trains", r"strategy 'broken' has trainable parameters of its own \(extra\)"),
        ("forgets", "strategy 'broken' must feed every mapped parameter exactly once"),
    ],
)
def test_a_strategy_is_held_to_its_contract(fault: str, message: str) -> None:
    """Budget, trainable numbers and coverage of a third-party strategy are checked when the model is built."""
    plugin = type("broken_plugin", (), {"mapping_generators": staticmethod(mapping_generators)})
    registry = Registry.of(mapping_core.builtin, plugin)
    with pytest.raises(PluginError, match=message):
        MappingModel(targets.mlp(), 16, Broken(fault=fault), registry=registry)


def test_a_mode_set_from_outside_is_followed() -> None:
    """Flags given back by hand after an evaluation, as Lightning does, give each module of the target its own mode."""
    target = nn.Sequential(nn.Linear(6, 3), nn.Dropout(), nn.Dropout())
    target[2].eval()
    model = MappingModel(target, 8)
    x = torch.ones(2, 6)

    def modes() -> list[bool]:
        model(x)
        return [module.training for module in model.skeleton.modules()]

    flags = [(module, module.training) for module in model.modules()]
    before = modes()
    assert before == [True, True, True, False]
    for _ in range(2):
        model.eval()
        assert modes() == [False] * 4
        for module, training in flags:
            module.training = training
        assert modes() == before
    for module in model.modules():
        module.training = False
    assert modes() == [False] * 4
    model.train()
    assert modes() == [True] * 4


def test_plain_data_of_the_target() -> None:
    """The target's plain attributes can be read, `None` too; its tensors, modules, methods and properties cannot."""

    class Net(nn.Linear):
        kind = "net"
        nothing = None
        _private = 1

        def __init__(self) -> None:
            super().__init__(6, 3)
            self.config = {"width": 3}
            self.plain_tensor = torch.ones(1)
            self.inner = nn.ReLU()

        @property
        def device(self) -> torch.device:
            return self.weight.device

        def classify(self, x: Tensor) -> Tensor:
            return torch.argmax(self(x), -1)

    target = Net()
    model = MappingModel(target, 8)
    assert copy.deepcopy(model).config == model.config == {"width": 3}
    assert (model.kind, model.nothing, model.out_features) == ("net", None, 3)
    model.config["width"] = 4
    assert target.config == {"width": 3}
    for name in ("device", "classify", "weight", "inner", "plain_tensor", "_private", "gone"):
        with pytest.raises(AttributeError, match=f"'MappingModel' object has no attribute '{name}'"):
            getattr(model, name)


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("make", [nn.Embedding, nn.EmbeddingBag])
def test_embeddings_with_sparse_gradients(make: type[nn.Module], lazy: bool) -> None:
    """An embedding with sparse gradients trains through a latent as a dense one does, and is exported as it was."""
    tokens = torch.tensor([[1, 2], [2, 3]])
    gradients = []
    for sparse in (False, True):
        torch.manual_seed(0)
        target = nn.Sequential(make(8, 4, sparse=sparse))
        model = MappingModel(target, 6, strategy="slvt", lazy=lazy)
        model(tokens).square().sum().backward()
        gradients.append(model.latent.grad)
        for module in (target, model.export()):
            assert bool(module.get_submodule("0").sparse) is sparse
    assert torch.equal(*gradients)  # type: ignore[arg-type]
    trained = MappingModel(nn.Sequential(nn.Embedding(8, 4, sparse=True), nn.Linear(4, 2)), 36, trained="0")
    trained(tokens).sum().backward()
    assert [p.grad.is_sparse for p in trained.parameters() if p.grad is not None] == [False, True]


def test_built_in_inference_mode() -> None:
    """A model that is built under `inference_mode` trains like any other."""
    with torch.inference_mode():
        model = MappingModel(targets.mlp(), 16, "slvt")
    model(torch.randn(2, 6)).sum().backward()
    assert model.latent.grad is not None


def test_a_budget_of_another_integer_type() -> None:
    """An integer of NumPy is an integer."""
    budget: Any = numpy.int64(16)
    assert MappingModel(targets.mlp(), budget, "slvt").latent_dim == 16
