"""`mapping inspect` and `mapping export`: what they print and write, and their one-line errors."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from click.testing import CliRunner, Result
from torch import nn

from mapping_core import FileFormatError, MappingModel
from mapping_core.builtin.mappers import Orthogonal
from mapping_core.cli import main
from mapping_core.recipe import FORMAT, read_header
from mapping_core.runs import build_target
from tests import targets

OWN = '''
"""Targets of one's own."""
import torch
from torch import nn

class Net(nn.Sequential):
    def __init__(self, width=8, bias=True, kind="plain"):
        super().__init__(nn.Linear(6, width, bias=bias), nn.BatchNorm1d(width), nn.Linear(width, 3))

class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.output = nn.Linear(4, 7, bias=False)
        self.output.weight = self.embedding.weight
        self.register_buffer("phase", torch.tensor([0.6 + 0.8j]))
        self.register_buffer("columns", torch.arange(6.0).view(2, 3).T)

    def forward(self, tokens):
        return self.output(self.embedding(tokens))

class Extra(nn.Linear):
    def __init__(self):
        super().__init__(6, 3)

    def get_extra_state(self):
        return {"calls": 3}

    def set_extra_state(self, state):
        self.state = state

def nothing():
    return 3
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give a working folder with a module `own_targets` in it."""
    (tmp_path / "own_targets.py").write_text(OWN, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "own_targets", raising=False)
    monkeypatch.setenv("COLUMNS", "100")
    return tmp_path


def mapping(*arguments: str) -> Result:
    """Run the command in this process."""
    return CliRunner().invoke(main, arguments)


def line_of(result: Result) -> str:
    """Return the one line of an error."""
    assert result.exit_code == 2, result.output
    assert not result.stdout
    (line,) = result.stderr.splitlines()
    assert line.startswith("mapping: error: ")
    return line.removeprefix("mapping: error: ")


def saved(folder: Path, target: nn.Module, latent_dim: int = 16, **options: Any) -> MappingModel:
    """Write `model.safetensors` of a model whose latent has moved, and return the model."""
    model = MappingModel(target, latent_dim, **options)
    with torch.no_grad():
        model.latent.normal_(generator=torch.Generator().manual_seed(0))
    model.save(folder / "model.safetensors")
    return model


def own(name: str, seed: int, **arguments: Any) -> nn.Module:
    """Make one of the folder's targets as a run does."""
    return build_target(f"own_targets:{name}", arguments, seed=seed)


def test_inspect(folder: Path) -> None:
    """Format, versions, components, seed, budget, base, policy, roles, fingerprints, tensors and bytes are shown."""
    options = {"strategy": "slvt", "mapper": Orthogonal(max_bytes=10**6), "trained": "2.bias", "frozen": ["0.bias"]}
    model = saved(folder, own("Net", 5), 16, seed=5, buffers="tracked", **options)
    result = mapping("inspect", "model.safetensors")
    assert result.exit_code == 0, result.output
    facts = {line[:12].strip(): line[12:] for line in result.stdout.splitlines()[:10]}
    size = (folder / "model.safetensors").stat().st_size
    assert facts == {
        "format": f"{FORMAT}, written by mapping-core 0.1.0, random numbers of version 1",
        "numbers": "16 trainable, for 88 mapped weights",
        "strategy": "slvt, from mapping-plugin-slvt 0.1.0",
        "mapper": "orthogonal (max_bytes=1000000), from mapping-core 0.1.0",
        "seed": "5",
        "base": f"current, sha256 {model.base_fingerprint()}",
        "layout": model.layout.fingerprint(),
        "buffers": "tracked",
        "trained": "2.bias",
        "frozen": "0.bias",
    }
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in result.stdout.splitlines() if "│" in line]
    assert ["latent", "F32", "13", "52"] in rows
    assert ["target.trained.2.bias", "F32", "3", "12"] in rows
    assert ["target.tracked.1.num_batches_tracked", "I64", "scalar", "8"] in rows
    assert result.stdout.splitlines()[-1] == f"{52 + 12 + 2 * 32 + 8} bytes of tensors, {size:,} in all"


def test_inspect_json(folder: Path) -> None:
    """With --json the whole recipe and all tensors are one JSON document."""
    model = saved(folder, own("Net", 0))
    result = mapping("inspect", "model.safetensors", "--json")
    shown = json.loads(result.stdout)
    assert shown["recipe"]["latent_dim"] == 16
    assert shown["recipe"]["components"]["strategy"]["settings"] == {"type": "layerwise", "budget": "equal"}
    assert shown["bytes"] == (folder / "model.safetensors").stat().st_size
    assert {entry["name"]: tuple(entry["shape"]) for entry in shown["tensors"]} == {
        name: tuple(tensor.shape) for name, tensor in model.state_dict().items()
    }


def damaged(folder: Path, change: str) -> Path:
    """Write a file that is wrong in one way."""
    saved(folder, own("Net", 0))
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    contents = {
        "empty": b"",
        "text": b"latent_dim = 16\n",
        "cut": whole[:-4],
        "longer": whole + b"\0",
        "header cut": whole[:40],
        "huge header": b"\xff" * 8 + whole[8:],
        "no json": (4).to_bytes(8, "little") + b"{{{{",
        "no table": (2).to_bytes(8, "little") + b"[]",
        "no utf-8": (2).to_bytes(8, "little") + b"\xff\xfe",
        "deep": (200_000).to_bytes(8, "little") + b"[" * 200_000,
        "bad tensor": (8).to_bytes(8, "little") + b'{"a": 1}',
        "no offsets": (9).to_bytes(8, "little") + b'{"a": {}}',
        "metadata": (22).to_bytes(8, "little") + b'{"__metadata__": null}',
    }
    path.write_bytes(contents[change])
    return path


@pytest.mark.parametrize(
    "change",
    [
        *("empty", "text", "cut", "longer", "header cut", "huge header", "no json", "no table", "no utf-8"),
        *("deep", "bad tensor", "no offsets", "metadata"),
    ],
)
def test_damaged_files(folder: Path, change: str) -> None:
    """Whatever is wrong with a file, both commands and `load` say in one line that it is damaged."""
    path = damaged(folder, change)
    assert "model.safetensors: is " in line_of(mapping("inspect", str(path)))
    assert "model.safetensors: is " in line_of(
        mapping("export", str(path), "--target", "own_targets:Net", "--output", "o")
    )
    with pytest.raises(FileFormatError, match=r"is damaged|was not written by"):
        MappingModel.load(path, own("Net", 0))


@pytest.mark.parametrize("path", ["gone.safetensors", "."])
def test_no_file(folder: Path, path: str) -> None:
    """A file that is not there, or a folder, is one line."""
    assert line_of(mapping("inspect", path)) == f"{path}: there is no such file"


def test_foreign_and_newer(folder: Path) -> None:
    """A safetensors file of something else is refused; one of a newer format is shown, and cannot be exported."""
    path = folder / "model.safetensors"
    safetensors.torch.save_file({"weight": torch.zeros(2)}, path)
    assert "was not written by MappingModel.save" in line_of(mapping("inspect", str(path)))
    recipe = {"format": 9, "random": 1, "version": "7.0", "latent": {"dim": 3}}
    safetensors.torch.save_file({"weight": torch.zeros(2)}, path, metadata={"mapping_core": json.dumps(recipe)})
    result = mapping("inspect", str(path))
    assert result.exit_code == 0
    assert "9, written by mapping-core 7.0; mapping-core 0.1.0 cannot load it: upgrade" in result.stdout
    assert 'latent      {"dim": 3}' in result.stdout
    assert "pip install --upgrade mapping-core" in line_of(
        mapping("export", str(path), "--target", "cnn2", "--output", "o")
    )


@pytest.mark.parametrize(
    "change",
    [
        {"components": []},
        {"components": {"strategy": {"settings": {"type": "slvt"}, "supplier": None}}},
        {"components": {"strategy": {}, "mapper": {}}},
        {"components": {"strategy": {"settings": {}}, "mapper": {"settings": {}}}},
        {"roles": {"owned": []}},
        {"roles": {"frozen": 3}},
        {"latent_dim": "16"},
        {"seed": True},
        {"base_sha256": None},
    ],
    ids=str,
)
def test_recipes_of_the_wrong_kind(folder: Path, change: dict[str, Any]) -> None:
    """A recipe whose entries are not what they should be is damage, and named, for `load` and both commands."""
    saved(folder, own("Net", 0))
    path = folder / "model.safetensors"
    recipe = {**read_header(path).recipe, **change}
    tensors = safetensors.torch.load_file(path)
    safetensors.torch.save_file(tensors, path, metadata={"mapping_core": json.dumps(recipe)})
    expected = f"model.safetensors: is damaged, its recipe has the wrong kind of {next(iter(change))}"
    assert line_of(mapping("inspect", "model.safetensors")) == expected
    assert line_of(mapping("export", "model.safetensors", "--target", "cnn2", "--output", "o")) == expected
    with pytest.raises(FileFormatError, match=expected):
        MappingModel.load("model.safetensors", own("Net", 0))


def export(folder: Path, *options: str, target: str = "own_targets:Net") -> Result:
    """Run `mapping export` on the folder's file."""
    return mapping("export", "model.safetensors", "--target", target, "--output", "out.safetensors", *options)


def test_export(folder: Path) -> None:
    """The written file is the target's state dict, bit for bit, and any program that reads safetensors takes it."""
    model = saved(folder, own("Net", 7, width=9, bias=False), seed=7)
    result = export(folder, "--target-arg", "width=9", "--target-arg", "bias=false", "--target-arg", "kind=wide")
    assert result.exit_code == 0, result.output
    path = folder / "out.safetensors"
    assert result.stdout == f"8 tensors, {path.stat().st_size:,} bytes, written to out.safetensors\n"
    written = safetensors.torch.load_file(path)
    plain = own("Net", 0, width=9, bias=False)
    plain.load_state_dict(written, strict=True)
    x, _ = targets.rows()
    assert torch.equal(plain.eval()(x), model.eval()(x))
    if os.name == "posix":
        assert path.stat().st_mode & 0o777 == (folder / "own_targets.py").stat().st_mode & 0o777
    assert {each.name for each in folder.iterdir()} >= {"out.safetensors", "model.safetensors", "own_targets.py"}
    assert not [each.name for each in folder.iterdir() if each.name.startswith(".")]


def test_export_with_shared_and_strange_tensors(folder: Path) -> None:
    """Tied tensors are written under each name; complex ones and ones with strides arrive as they are."""
    model = saved(folder, own("Tied", 0), 8)
    result = export(folder, target="own_targets:Tied")
    assert result.exit_code == 0, result.output
    plain = own("Tied", 3)
    plain.load_state_dict(safetensors.torch.load_file(folder / "out.safetensors"), strict=True)
    tokens = torch.tensor([0, 3, 6])
    assert torch.equal(plain(tokens), model.eval()(tokens))
    assert torch.equal(plain.get_buffer("phase"), torch.tensor([0.6 + 0.8j]))
    assert torch.equal(plain.get_buffer("columns"), torch.arange(6.0).view(2, 3).T)


def test_seed(folder: Path) -> None:
    """A base of the target's own weights needs the seed it was made with: the file's, or the one that is given."""
    saved(folder, own("Net", 4))
    assert "with other base weights" in line_of(export(folder))
    assert export(folder, "--seed", "4").exit_code == 0
    saved(folder, own("Net", 0), base="seeded", seed=3)
    assert export(folder, "--seed", "99").exit_code == 0


def test_files_of_a_run_are_exported(folder: Path) -> None:
    """What `mapping train` wrote is exported without naming a seed."""
    (folder / "run.toml").write_text(
        'target = "digits_cnn"\ndata = "own_data:loaders"\nlatent_dim = 32\nseed = 6\n'
        '[trainer]\nmax_epochs = 1\naccelerator = "cpu"\nprogress = false\nrun_dir = "out"\n',
        encoding="utf-8",
    )
    (folder / "own_data.py").write_text(
        "import torch\n\ndef loaders():\n    return [(torch.ones(2, 1, 8, 8), torch.tensor([0, 1]))], None\n",
        encoding="utf-8",
    )
    result = mapping("train", "run.toml")
    assert result.exit_code == 0, result.output
    (file,) = (folder / "out").glob("checkpoints/*/model.safetensors")
    result = mapping("export", str(file), "--target", "digits_cnn", "--output", "digits.safetensors")
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--target", "own_targets:Nte"], "target: 'own_targets' has no 'Nte'; did you mean 'Net'?"),
        (["--target", "gone:Net"], "target: cannot import 'gone': ModuleNotFoundError"),
        (["--target", "cnn3"], "target: 'cnn3' is neither built in (cnn1, cnn2, "),
        (["--target", "own_targets:nothing"], "target: 'own_targets:nothing' made a int, not a torch.nn.Module"),
        (["--target", "cnn2"], "model.safetensors: was made for another target, with 99 mapped weights"),
        (["--target-arg", "width=9"], "was made for another target"),
        (["--target-arg", "widht=9"], "target_arguments: "),
        (["--target-arg", "width"], "--target-arg: expected KEY=VALUE, got 'width'"),
        (["--target-arg", "=3"], "--target-arg: expected KEY=VALUE, got '=3'"),
        (["--output", "model.safetensors"], "--output: model.safetensors: is the file to export, which would be lost"),
        (["--output", "gone/out"], "--output: gone/out: there is no folder gone"),
        (["--output", "."], "--output: .: is a folder"),
    ],
)
def test_export_refusals(folder: Path, options: list[str], message: str) -> None:
    """What cannot be exported ends in one line that names the option or the file, and nothing is written."""
    saved(folder, own("Net", 0))
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    assert message in line_of(export(folder, *options))
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before


def test_export_of_extra_state(folder: Path) -> None:
    """`export_state_dict` has a module's extra state, and a safetensors file, which cannot, is refused by name."""
    model = saved(folder, own("Extra", 0))
    assert model.export_state_dict()["_extra_state"] == {"calls": 3}
    assert "cannot hold the extra state of a module: _extra_state" in line_of(
        export(folder, target="own_targets:Extra")
    )


def test_export_that_cannot_be_written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk is one line, and leaves an older file as it was and nothing beside it."""
    saved(folder, own("Net", 0))
    (folder / "out.safetensors").write_bytes(b"older")

    def full(self: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    assert line_of(export(folder)) == "--output: out.safetensors: cannot be written: No space left on device"
    assert (folder / "out.safetensors").read_bytes() == b"older"
    assert not [each.name for each in folder.iterdir() if each.name.startswith(".out")]
