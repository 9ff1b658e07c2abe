"""The file of a model: what is in it, and every way in which it can be wrong."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import attrs
import pytest
import safetensors
import safetensors.torch
import torch
from torch import nn

from mapping_core import FileFormatError, MappingModel, Registry, TargetError, UnknownComponentError
from mapping_core.builtin.mappers import Orthogonal
from mapping_core.files import restore
from tests import targets


def trained(target: nn.Module, latent_dim: int = 16, **options: Any) -> MappingModel:
    """Return a model whose latent is not 0."""
    model = MappingModel(target, latent_dim, **options)
    with torch.no_grad():
        model.latent.normal_()
    return model


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Give the file of a model of `targets.mlp`."""
    path = tmp_path / "model.safetensors"
    trained(targets.mlp()).save(path)
    return path


def rewrite(path: Path, **changes: Any) -> None:
    """Replace entries of a file's recipe; None removes one."""
    with safetensors.safe_open(path, framework="pt") as opened:
        recipe = json.loads(opened.metadata()["mapping_core"])
        tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    recipe = {key: value for key, value in {**recipe, **changes}.items() if value is not None}
    safetensors.torch.save_file(tensors, path, metadata={"mapping_core": json.dumps(recipe)})


@pytest.mark.parametrize("case", targets.CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("strategy", ["slvt", "layerwise"])
def test_there_and_back(case: targets.Case, strategy: str, tmp_path: Path) -> None:
    """What is loaded computes the same bits, with the same components, seed and policy."""
    model = trained(
        case.make(), 7, strategy=strategy, mapper=Orthogonal(max_bytes=10**6), seed=2**63, buffers="tracked"
    )
    x = case.inputs()
    model(x)
    model.save(tmp_path / "m")
    loaded = MappingModel.load(tmp_path / "m", case.make())
    assert torch.equal(loaded.eval()(x), model.eval()(x))
    assert loaded.components() == model.components()
    assert (loaded.seed, loaded.base, loaded.buffer_policy) == (2**63, "current", "tracked")


@pytest.mark.parametrize("latent_dim", [4, 2048])
@pytest.mark.parametrize("strategy", ["slvt", "layerwise"])
def test_size(latent_dim: int, strategy: str, tmp_path: Path) -> None:
    """The file takes 4 bytes a number, the tracked buffers, and at most 8 KB."""
    target = nn.Sequential(targets.conv_norm(), nn.Linear(3, 4096))
    model = trained(target, latent_dim, strategy=strategy)
    state = model.state_dict().items()
    tracked = sum(t.numel() * t.element_size() for name, t in state if name.startswith("target.tracked"))
    assert tracked > 0
    model.save(tmp_path / "m")
    assert (tmp_path / "m").stat().st_size <= 4 * latent_dim + tracked + 8192


@pytest.mark.parametrize("convert", [torch.float64, torch.bfloat16])
def test_a_converted_model_still_fits_its_target(convert: torch.dtype, tmp_path: Path) -> None:
    """After `.to(dtype)`, which rounds the base, the file loads onto the target the model was made of."""
    model = trained(targets.mlp()).to(convert)
    model.save(tmp_path / "m")
    loaded = MappingModel.load(tmp_path / "m", targets.mlp())
    torch.testing.assert_close(loaded.latent.detach().to(convert), model.latent.detach())


def test_recipe_names_the_suppliers(file: Path) -> None:
    """Each component stands in the recipe with its settings and the distribution that supplies it."""
    with safetensors.safe_open(file, framework="pt") as opened:
        components = json.loads(opened.metadata()["mapping_core"])["components"]
    assert components["strategy"]["settings"] == {"type": "layerwise", "budget": "equal"}
    assert components["strategy"]["supplier"].startswith("mapping-plugin-layerwise 0.")
    assert components["mapper"]["supplier"].startswith("mapping-core 0.")


def test_saving_replaces_whole_files(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that fails leaves the old file as it was and nothing beside it."""
    before = file.read_bytes()

    def half(self: Path, target: Path) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(Path, "replace", half)
    with pytest.raises(OSError, match="disk full"):
        trained(targets.mlp()).save(file)
    assert file.read_bytes() == before
    assert list(file.parent.iterdir()) == [file]


def test_saving_overwrites_and_follows_the_umask(file: Path) -> None:
    """Saving again replaces the file; its permissions are those of any new file."""
    before = file.read_bytes()
    trained(targets.mlp(seed=1)).save(str(file))
    assert file.read_bytes() != before
    plain = file.with_name("plain")
    plain.touch()
    assert stat.S_IMODE(file.stat().st_mode) == stat.S_IMODE(plain.stat().st_mode)


def test_no_folder(tmp_path: Path) -> None:
    """Saving into a folder that is not there says which folder."""
    with pytest.raises(FileNotFoundError, match=r"there is no folder .*nowhere to write it to"):
        MappingModel(targets.mlp(), 16).save(tmp_path / "nowhere" / "m")


def refused(path: Path, message: str, target: nn.Module | None = None) -> None:
    """Expect a `FileFormatError` that names the file, in one line."""
    with pytest.raises(FileFormatError, match=message) as caught:
        MappingModel.load(path, targets.mlp() if target is None else target)
    assert str(path) in str(caught.value)


def test_missing_and_folder(tmp_path: Path) -> None:
    """A path without a file is said to be one."""
    refused(tmp_path / "m", "there is no such file")
    refused(tmp_path, "there is no such file")


def test_damaged(file: Path) -> None:
    """Cut, scrambled, empty and pickled files are refused, and no pickle is executed."""
    whole = file.read_bytes()
    for content in (whole[:-8], whole[:20], b"\xff" * 8 + whole[8:], b"", b"not a model"):
        file.write_bytes(content)
        refused(file, "is damaged, or not a safetensors file")
    torch.save({"a": 1}, file)
    refused(file, "is damaged, or not a safetensors file")


def test_foreign(file: Path) -> None:
    """A safetensors file of something else is refused as such, with and without metadata."""
    for metadata in (None, {"format": "pt"}):
        safetensors.torch.save_file({"latent": torch.zeros(16)}, file, metadata=metadata)
        refused(file, "was not written by MappingModel.save")


@pytest.mark.parametrize("recipe", ["{", "[]", "7", "{}", '{"format": "x", "random": 1, "version": "0"}'])
def test_unreadable_recipe(file: Path, recipe: str) -> None:
    """A recipe that is no JSON, or no table of the known kind, is damage."""
    safetensors.torch.save_file({"latent": torch.zeros(16)}, file, metadata={"mapping_core": recipe})
    refused(file, "is damaged, its recipe cannot be read")


def test_incomplete_recipe(file: Path) -> None:
    """A recipe without an entry says which."""
    rewrite(file, seed=None, layout=None)
    refused(file, "its recipe lacks layout, seed")


@pytest.mark.parametrize("entry", ["format", "random"])
def test_newer(file: Path, entry: str) -> None:
    """A file of a later version says which version wrote it and what to do."""
    rewrite(file, **{entry: 99, "version": "9.8"})
    refused(file, r"was written by mapping-core 9\.8, .*pip install --upgrade mapping-core")


def test_other_target(file: Path) -> None:
    """Another architecture is refused with both sizes."""
    refused(file, "made for another target, with 83 mapped weights; this Residual has 75", targets.Residual())
    trained(targets.mlp(), trained="2.bias").save(file)
    refused(file, "does not fit this Residual: trained='2.bias' matches no parameter", targets.Residual())
    trained(targets.mlp()).save(file)
    refused(file, "other names or shapes", nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 3)))


def test_other_base(file: Path, tmp_path: Path) -> None:
    """The same architecture with other weights, frozen weights or constants is refused."""
    refused(file, "other base weights", targets.mlp(seed=1))
    trained(targets.partly_frozen()).save(file)
    other = targets.partly_frozen()
    other.get_parameter("0.weight").data[0, 0] += 1
    refused(file, "other base weights", other)
    trained(targets.estimated_conv_norm()).save(file)
    norm = targets.estimated_conv_norm()
    norm.get_buffer("1.running_mean")[0] += 1
    refused(file, "other base weights", norm)


def test_other_scales(file: Path) -> None:
    """Rows scaled in another way than here would be other weights: refused, since the layout alone does not show it."""
    rewrite(file, scales="0" * 32)
    refused(file, r"was made with other row scales .*initializer_range.* mapping-core 0\.")
    rewrite(file, scales=None)
    refused(file, "its recipe lacks scales")
    rewrite(file, format=1)
    MappingModel.load(file, targets.mlp())


def test_tensors_of_another_recipe(file: Path) -> None:
    """A recipe that does not fit the file's tensors is damage."""
    rewrite(file, latent_dim=17)
    refused(file, "is damaged, its tensors are not those of its recipe")
    rewrite(file, latent_dim=10**9)
    refused(file, "is damaged, its latent does not fit its layout")
    with pytest.raises(TargetError, match=r"target_model must be a torch\.nn\.Module, got int"):
        MappingModel.load(file, 3)  # type: ignore[arg-type]


def test_missing_plugin(file: Path) -> None:
    """A strategy that nobody supplies says what to install."""
    registry = Registry.discover(block=["mapping-plugin-layerwise"])
    with pytest.raises(UnknownComponentError, match=r"no generator named 'layerwise' is installed") as caught:
        MappingModel.load(file, targets.mlp(), registry=registry)
    assert str(caught.value).startswith(f"{file}: ")
    assert "the file was written with mapping-plugin-layerwise 0." in str(caught.value)


def test_another_supplier_of_the_same_name(file: Path) -> None:
    """A file is loaded with the component of the distribution it names, also beside another's, and with no other's."""
    installed = Registry.discover()
    own = next(entry for entry in installed.entries if entry.name == "layerwise")
    rival = attrs.evolve(own, distribution="mapping-plugin-rival", component=type("Rival", (own.component,), {}))
    both = attrs.evolve(installed, entries=(rival, *installed.entries))
    assert type(MappingModel.load(file, targets.mlp(), registry=both).strategy) is own.component
    others = attrs.evolve(both, entries=tuple(entry for entry in both.entries if entry is not own))
    with pytest.raises(
        UnknownComponentError,
        match=r"with strategy 'layerwise' of mapping-plugin-layerwise .* by mapping-plugin-rival.*pip install",
    ) as caught:
        MappingModel.load(file, targets.mlp(), registry=others)
    assert str(caught.value).count(str(file)) == 1


def test_a_damaged_file_changes_nothing(file: Path) -> None:
    """Tensors that do not fit a model's recipe are refused, and the model keeps every number it had."""
    model = trained(targets.mlp())
    before = model.latent_vector()
    with safetensors.safe_open(file, framework="pt") as opened:
        metadata, latent = opened.metadata(), opened.get_tensor("latent")
    for tensors in ({"latent": latent[:-1].clone()}, {"packed.codes": latent}, {"latent": latent, "other": latent * 2}):
        safetensors.torch.save_file(tensors, file, metadata=metadata)
        with pytest.raises(FileFormatError, match="its tensors are not those of its recipe"):
            restore(file, model)
        assert torch.equal(model.latent_vector(), before)


def test_file_bytes(file: Path) -> None:
    """A model knows the size of its file without writing it."""
    model = MappingModel.load(file, targets.mlp())
    assert model.file_bytes() == file.stat().st_size
