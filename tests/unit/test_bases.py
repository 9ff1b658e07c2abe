"""The base: the target's own weights, weights drawn anew, or none."""

from __future__ import annotations

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
    return model.generate({name: torch.zeros_like(z) for name, z in model.latents.items()})


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
    spread = one.generate()["0.weight"].std() / targets.mlp().get_parameter("0.weight").std()
    assert 0.5 < spread < 2


def test_unknown_base() -> None:
    """Another word is refused with the three there are."""
    with pytest.raises(ConfigError, match="base: 'own' is not one of current, seeded, zero"):
        MappingModel(targets.mlp(), 16, base="own")
