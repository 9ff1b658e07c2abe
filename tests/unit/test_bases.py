"""The base: the target's own weights, weights drawn anew, or none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from mapping_core import ConfigError, MappingModel, TargetError
from tests import targets

RESETTABLE = [case for case in targets.CASES if case.name != "look_alike_names"]


def base_of(target: nn.Module, base: str, seed: int = 0) -> dict[str, torch.Tensor]:
    """Return the weights that a latent of 0 gives."""
    model = MappingModel(target, 7, base=base, seed=seed)
    return model.generate_weights({name: torch.zeros_like(z) for name, z in model.latents.items()})


@pytest.mark.parametrize("case", RESETTABLE, ids=lambda c: c.name)
def test_seeded_depends_on_the_seed_alone(case: targets.Case) -> None:
    """A seeded base is the same whatever the target's weights and torch's generator; another seed, another base."""
    if case.name == "scalars":
        with pytest.raises(TargetError, match=r"Scalars '', which owns 'logit_scale', has none"):
            base_of(case.make(), "seeded")
        return
    other = case.make()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(1)
    torch.manual_seed(1)
    one = base_of(case.make(), "seeded", seed=3)
    torch.manual_seed(2)
    state = torch.get_rng_state()
    two = base_of(other, "seeded", seed=3)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(one[name], two[name]) and one[name].dtype == two[name].dtype for name in one)
    third = base_of(case.make(), "seeded", seed=4)
    assert any(not torch.equal(one[name], third[name]) for name in one)


def test_a_seeded_file_is_complete(tmp_path: Path) -> None:
    """A file of a seeded model loads onto a target with other weights and gives the same bits."""
    model = MappingModel(targets.mlp(), 16, base="seeded", seed=5)
    with torch.no_grad():
        model.latent.normal_()
    model.save(tmp_path / "m")
    loaded = MappingModel.load(tmp_path / "m", targets.mlp(seed=9))
    x = torch.randn(3, 6)
    assert torch.equal(loaded(x), model(x))


def test_zero_is_the_mapping_alone() -> None:
    """Around nothing the weights are the mapping; norms keep their constants; the latent starts at random."""
    base = base_of(targets.conv_norm(), "zero")
    assert not base["0.weight"].any()
    assert not base["5.bias"].any()
    assert torch.equal(base["1.weight"], torch.ones(4))
    one, same, other = (MappingModel(targets.mlp(), 40, base="zero", seed=seed) for seed in (1, 1, 2))
    assert torch.equal(one.latent, same.latent)
    assert not torch.equal(one.latent, other.latent)
    assert 0.5 < one.latent.std() < 1.5
    spread = one.generate_weights()["0.weight"].std() / targets.mlp().get_parameter("0.weight").std()
    assert 0.5 < spread < 2


def test_unknown_base() -> None:
    """Another word is refused with the three there are."""
    with pytest.raises(ConfigError, match="base: 'own' is not one of current, seeded, zero"):
        MappingModel(targets.mlp(), 16, base="own")


@pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated")
@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: nn.utils.weight_norm(nn.Linear(3, 3)), "weight_g"),
        (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(3, 3)), r"parametrizations\.weight\.original0"),
        (lambda: nn.Sequential(nn.Linear(3, 3), nn.ParameterList([torch.zeros(2)])), r"1\.0"),
    ],
)
def test_seeded_is_never_partly_the_targets_own(make: Callable[[], nn.Module], name: str) -> None:
    """A parameter that no `reset_parameters` draws is refused by name, also where its module has such a method."""
    with pytest.raises(TargetError, match=f"base='seeded' needs every module .*'{name}', has"):
        base_of(make(), "seeded")


class Data(nn.Module):
    """Draws its weight past autograd, as older code does, and reads nothing of what was there."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(3, 3))

    def reset_parameters(self) -> None:
        """Draw."""
        self.weight.data.uniform_(-1, 1)


def test_seeded_takes_any_way_of_drawing() -> None:
    """It does not matter how a module draws, and frozen parameters are not drawn."""
    one, two = (base_of(nn.Sequential(Data(), nn.MultiheadAttention(4, 2)), "seeded") for _ in range(2))
    assert all(torch.equal(one[name], two[name]) and one[name].isfinite().all() for name in one)
    target = targets.partly_frozen()
    model = MappingModel(target, 8, base="seeded")
    assert torch.equal(model.export().get_parameter("0.weight"), target.get_parameter("0.weight"))


def test_zero_and_seeded_embeddings() -> None:
    """An embedding, which is drawn and not constant, is nothing under "zero"; padding rows are 0 under both."""
    assert not base_of(nn.Embedding(5, 3), "zero")["weight"].any()
    for kind in ("zero", "seeded"):
        weight = MappingModel(nn.Embedding(5, 3, padding_idx=1), 10, base=kind).generate_weights()["weight"]
        assert not weight[1].any()
        assert weight[[0, 2, 3, 4]].any(dim=1).all()


def test_a_shared_base_is_the_targets_memory() -> None:
    """With `share_base` nothing is copied and nothing is written; without it nothing is shared."""
    for share in (True, False):
        target = targets.partly_frozen()
        model = MappingModel(target, 8, share_base=share)
        tensors = {**model.target.base.as_dict(), **model.target.frozen.as_dict()}
        assert {tensors[name].data_ptr() == p.data_ptr() for name, p in target.named_parameters()} == {share}
        model(torch.randn(2, 6)).sum().backward()
        assert all(parameter.grad is None for parameter in target.parameters())


def test_a_shared_base_that_is_converted() -> None:
    """Converting a model leaves the target that it shares its base with as it is."""
    target = targets.mlp()
    MappingModel(target, 8, share_base=True).double()
    assert all(parameter.dtype == torch.float32 for parameter in target.parameters())
