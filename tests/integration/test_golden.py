"""Files of earlier formats still mean what they meant: the same weights to the bit, the same outputs.

`tests/golden/FORMAT-NAME.safetensors` are files as `save` wrote them, each beside one with the
weights that `export_state_dict` gave and the output for `inputs`. When the recipe's format
rises, new ones join them, and the old ones stay as they are: for each case `made(case)` is
saved under the new number, and ``safetensors.torch.save_file`` writes what `meant(model, case)`
returns to ``FORMAT-NAME-expected.safetensors``.

Nothing here comes from torch's random numbers, which may change. The latents are chosen so
that every product is exact, so that the bits do not depend on the order of a sum or on a fused
multiplication either.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from attrs import define, field
from torch import Tensor, nn

from mapping_core import MappingModel
from mapping_core.recipe import FORMAT, read_header

GOLDEN = Path(__file__).parents[1] / "golden"


def fixed(shape: tuple[int, ...], start: int) -> Tensor:
    """Numbers that look arbitrary and are eighths."""
    count = torch.Size(shape).numel()
    return (((torch.arange(count) + start) * 7 % 13 - 6) / 8).view(shape)


def filled(module: nn.Module) -> nn.Module:
    """The module with fixed weights, and running statistics as if they had been estimated."""
    with torch.no_grad():
        for index, tensor in enumerate([*module.parameters(), *module.buffers()]):
            if tensor.is_floating_point():
                tensor.copy_(fixed(tuple(tensor.shape), index))
        for layer in module.modules():
            if isinstance(layer, nn.BatchNorm1d):
                layer.get_buffer("running_var").abs_().add_(0.5)
                layer.get_buffer("num_batches_tracked").fill_(3)
            if isinstance(layer, nn.Embedding) and layer.padding_idx is not None:
                layer.weight[layer.padding_idx] = 0
    return module


def network() -> nn.Module:
    """Two layers around a norm; [N, 4] -> [N, 3]."""
    return filled(nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3)))


def tied() -> nn.Module:
    """A padded embedding whose weight the last layer shares; [N] tokens -> [N, 5]."""
    module = nn.Sequential(nn.Embedding(5, 4, padding_idx=1), nn.GRU(4, 4, batch_first=True), _First(), nn.Linear(4, 5))
    module[3].weight = module[0].weight
    return filled(module)


class _First(nn.Module):
    """The outputs of a recurrent layer, without its state."""

    def forward(self, outputs: tuple[Tensor, Tensor]) -> Tensor:
        return outputs[0]


@define(frozen=True)
class Case:
    """A target, the arguments of its model, and what trained: four equal numbers of each latent, the rest 0."""

    make: Callable[[], nn.Module]
    latent_dim: int
    options: Mapping[str, Any] = field(factory=dict)


CASES = {
    "slvt": Case(network, 16, {"strategy": "slvt", "buffers": "tracked", "seed": 5}),
    "layerwise": Case(network, 12, {"strategy": "layerwise"}),
    "roles": Case(network, 16 + 21, {"strategy": "slvt", "trained": "3", "frozen": ["1.bias", "BatchNorm1d"]}),
    "tied": Case(tied, 12, {"strategy": "layerwise", "seed": 2**63}),
    "zero": Case(network, 16, {"strategy": "slvt", "base": "zero", "buffers": "tracked"}),
}
FILES = sorted(path for path in GOLDEN.glob("*.safetensors") if not path.stem.endswith("-expected"))


def inputs(case: Case) -> Tensor:
    """A batch for the target of a case."""
    return torch.tensor([[0, 1, 4], [2, 2, 3]]) if case.make is tied else fixed((5, 4), 3)


def made(case: Case) -> MappingModel:
    """The model of a case after something was learned, made by today's code."""
    model = MappingModel(case.make(), case.latent_dim, **case.options)
    with torch.no_grad():
        for latent in model.latents.values():
            latent.zero_()
            latent[torch.tensor([1, 2, 7, 12]) % len(latent)] = 0.5
            latent[1] *= -1
        for name, tensor in model.named_parameters():
            if name != "latent":
                tensor.add_(0.25)
    if case.options.get("buffers") == "tracked":
        model.get_buffer("target.tracked.1.running_mean").add_(0.125)
    return model.eval()


def meant(model: MappingModel, case: Case) -> dict[str, Tensor]:
    """What a file stands for: the weights by name, and the output for the case's inputs."""
    with torch.no_grad():
        output: Tensor = model.eval()(inputs(case))
    weights = {f"weights.{name}": tensor.clone() for name, tensor in model.export_state_dict().items()}
    return {**weights, "output": output}


def check(model: MappingModel, case: Case, expected: Path) -> None:
    """Compare what a model stands for with what was recorded."""
    recorded, found = safetensors.torch.load_file(expected), meant(model, case)
    assert set(found) == set(recorded)
    torch.testing.assert_close(found.pop("output"), recorded.pop("output"), rtol=1e-6, atol=1e-6)
    different = [name for name, tensor in found.items() if not torch.equal(tensor, recorded[name])]
    assert not different
    assert [recorded[name].dtype for name in found] == [tensor.dtype for tensor in found.values()]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_golden_files_load(path: Path) -> None:
    """A file of any format gives the weights that it gave when it was written, bit for bit, and the outputs."""
    case = CASES[path.stem.partition("-")[2]]
    check(MappingModel.load(path, case.make()), case, path.with_name(f"{path.stem}-expected.safetensors"))


@pytest.mark.parametrize("name", CASES)
def test_the_same_seed_still_means_the_same_mapping(name: str, tmp_path: Path) -> None:
    """A model made today is the one that was made when the newest golden file was, and saves the same numbers."""
    model = made(CASES[name])
    path = GOLDEN / f"{FORMAT}-{name}.safetensors"
    check(model, CASES[name], path.with_name(f"{path.stem}-expected.safetensors"))
    model.save(tmp_path / "m")
    new, old = (safetensors.torch.load_file(each) for each in (tmp_path / "m", path))
    assert new.keys() == old.keys()
    assert all(torch.equal(new[key], old[key]) for key in new)
    assert read_header(tmp_path / "m").recipe.keys() == read_header(path).recipe.keys()


def test_every_format_has_its_files() -> None:
    """No format was raised without golden files of it, and they are small."""
    names = {f"{version}-{name}" for version in range(1, FORMAT + 1) for name in CASES}
    assert {path.stem for path in FILES} >= names
    assert max(path.stat().st_size for path in GOLDEN.iterdir()) < 5000
