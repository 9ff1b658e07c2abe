"""Moving the base: `MappingModel.rebase`, what a file keeps of it, and going back."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import safetensors
import safetensors.torch
import torch
from torch import nn

from mapping_core import ConfigError, FileFormatError, MappingModel
from mapping_core.files import restore
from mapping_plugin_lrd import Lrd
from mapping_plugin_modulation import Finetune
from mapping_plugin_pruning import Pruned
from tests import targets


def moved(strategy: Any = "slvt", times: int = 2, **options: Any) -> MappingModel:
    """A model whose base moved some times, with a latent that is not 0."""
    model = MappingModel(targets.mlp(), 20, strategy, **options)
    for index in range(times + 1):
        if index:
            model.rebase()
        with torch.no_grad():
            model.latent.normal_(generator=torch.Generator().manual_seed(index))
    return model


def same(one: MappingModel, other: MappingModel) -> bool:
    """Whether two models generate the same bits."""
    weights = one.generate_weights()
    return all(torch.equal(weight, weights[name]) for name, weight in other.generate_weights().items())


@pytest.mark.parametrize(
    ("strategy", "options"),
    [
        ("slvt", {}),
        ("layerwise", {"base": "zero"}),
        ("slvt", {"base": "seeded", "seed": 7}),
        (Lrd(rank=2), {}),
        (Lrd(rank=2), {"base": "zero"}),
        (Finetune(), {}),
        ("layerwise", {"modulation": "gain", "trained": "2.bias"}),
    ],
    ids=str,
)
def test_weights_stay_and_files_hold_the_list(strategy: Any, options: dict[str, Any], tmp_path: Path) -> None:
    """A move changes no weight; the model trains on elsewhere; its file gives the same bits, and can move on."""
    model = moved(strategy, times=1, **options)
    before = {name: weight.clone() for name, weight in model.generate_weights().items()}
    model.rebase(seed=99)
    assert all(torch.equal(weight, before[name]) for name, weight in model.generate_weights().items())
    assert not model.latent.any()
    x, _ = targets.rows(8)
    model(x).sum().backward()
    assert model.latent.grad is not None
    assert model.latent.grad.any()
    with torch.no_grad():
        model.latent.add_(0.1)
    model.save(tmp_path / "m")
    loaded = MappingModel.load(tmp_path / "m", targets.mlp())
    assert same(loaded, model)
    assert [each.seed for each in loaded.foldings.entries] == [model.seed, model.seed + 1]
    assert (loaded.mapping_seed, loaded.seed) == (99, model.seed)
    for each in (model, loaded):
        each.rebase()
    assert same(loaded, model)
    assert torch.equal(model.export()(x), loaded.export()(x))


def test_another_subspace() -> None:
    """The new mapping is another one: the same latent gives other weights than before."""
    model = moved(times=0)
    first = {name: weight - model.target.given()[name] for name, weight in model.generate_weights().items()}
    latent = model.latent.detach().clone()
    model.rebase()
    base = {name: tensor.clone() for name, tensor in model.target.base.as_dict().items()}
    with torch.no_grad():
        model.latent.copy_(latent)
    assert not torch.allclose(model.generate_weights()["0.weight"] - base["0.weight"], first["0.weight"], atol=1e-3)


def test_the_target_and_its_hash_stay() -> None:
    """The user's module is not touched, and the fingerprint is that of the base as it was given."""
    target = targets.mlp()
    before = copy.deepcopy(target.state_dict())
    model = MappingModel(target, 20, "slvt")
    model.rebase()
    assert model.base_fingerprint() == MappingModel(target, 20, "slvt").base_fingerprint()
    assert all(torch.equal(tensor, before[name]) for name, tensor in target.state_dict().items())


def test_state_dicts_go_both_ways() -> None:
    """A state of before a move takes the base back, one of after brings it; copies are independent."""
    model = moved(times=1)
    early = copy.deepcopy(model.state_dict())
    first = copy.deepcopy(model)
    model.rebase()
    with torch.no_grad():
        model.latent.normal_(generator=torch.Generator().manual_seed(5))
    late, second = copy.deepcopy(model.state_dict()), copy.deepcopy(model)
    model.load_state_dict(early)
    assert same(model, first)
    model.load_state_dict(late)
    assert same(model, second)
    fresh = MappingModel(targets.mlp(), 20, "slvt")
    plain, start = copy.deepcopy(fresh.state_dict()), copy.deepcopy(fresh)
    fresh.load_state_dict(late)
    assert same(fresh, second)
    fresh.load_state_dict(plain)
    assert same(fresh, start)
    assert fresh.state_dict().keys() == plain.keys()


def test_evaluation_follows() -> None:
    """Weights that were kept for evaluation are made anew when the base moved, even under an equal latent."""
    model = MappingModel(targets.mlp(), 20, "slvt").eval()
    x, _ = targets.rows(8)
    with torch.no_grad():
        start = model(x)
        model.latent.add_(0.5)
        output = model(x)
        model.rebase()
        assert torch.equal(model(x), output)
        assert not torch.equal(output, start)
    assert "base current moved 1 time, seed 0" in model.summary()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_converted_models_move(dtype: torch.dtype) -> None:
    """In another dtype the base moves too."""
    model = moved(times=1).to(dtype)
    model.rebase()
    x = targets.rows(8)[0].to(dtype)
    assert model(x).dtype == dtype
    assert len(model.foldings.entries) == 2


@pytest.mark.parametrize(
    "change",
    [
        {"foldings.seeds": None},
        {"foldings.latents": None},
        {"foldings.seeds": torch.tensor([0, 1])},
        {"foldings.seeds": torch.tensor([0, -1, 2])},
        {"foldings.seeds": torch.tensor(5)},
        {"foldings.latents": torch.zeros(2, 19)},
    ],
    ids=str,
)
def test_damaged_lists(change: dict[str, torch.Tensor | None], tmp_path: Path) -> None:
    """A list that cannot be one of the model is refused, and the model stays what it was."""
    moved().save(tmp_path / "m")
    with safetensors.safe_open(tmp_path / "m", framework="pt") as opened:
        metadata = opened.metadata()
        tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    tensors = {name: tensor for name, tensor in {**tensors, **change}.items() if tensor is not None}
    safetensors.torch.save_file(tensors, tmp_path / "m", metadata=metadata)
    model = moved(times=1)
    before = copy.deepcopy(model)
    with pytest.raises(FileFormatError, match="is damaged, its tensors are not those of its recipe"):
        restore(tmp_path / "m", model)
    assert same(model, before)


def test_refusals() -> None:
    """Strategies with state, shared bases and large seeds are refused, and nothing is changed."""
    model = MappingModel(targets.mlp(), 20, Pruned())
    with pytest.raises(ConfigError, match="strategy 'pruned' keeps state of its own, and its base cannot move"):
        model.rebase()
    with pytest.raises(ConfigError, match="share_base: a shared base cannot move"):
        MappingModel(targets.mlp(), 20, share_base=True).rebase()
    for seed in (2**63, -1):
        with pytest.raises(ConfigError, match="seed"):
            MappingModel(targets.mlp(), 20).rebase(seed)
    assert not model.foldings.entries


def test_running_statistics_stay() -> None:
    """What is tracked beside the weights is not touched by a move."""
    model = MappingModel(nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4)), 12, "slvt", buffers="tracked")
    model(targets.rows(8)[0])
    before = {name: tensor.clone() for name, tensor in model.target.tracked.as_dict().items()}
    model.rebase()
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.target.tracked.as_dict().items())
