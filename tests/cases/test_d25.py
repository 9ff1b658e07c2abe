"""D25: keys of compiled and distributed models. Sources: nanoGPT issue 325 (`_orig_mod.`) and Lightning issue 20233."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors
import torch
from torch import Tensor, nn

from mapping_core import MappingModel
from tests import targets

X = torch.randn(8, 1, 6, 6, generator=torch.Generator().manual_seed(1))


class Distributed(nn.Module):
    """What DistributedDataParallel does to names, without processes."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *args: Any) -> Any:
        return self.module(*args)


def compiled(module: nn.Module) -> Any:
    """Compile without a code generator."""
    torch.compiler.reset()
    return torch.compile(module, backend="aot_eager")


WRAPPERS: dict[str, Callable[[nn.Module], Any]] = {
    "compiled": compiled,
    "distributed": Distributed,
    "distributed_compiled": lambda module: Distributed(compiled(module)),
    "compiled_distributed": lambda module: compiled(Distributed(module)),
}


def model() -> MappingModel:
    """Return a model with all that a state dict can hold: latent, tracked buffers, directly trained parameters."""
    return targets.moved(MappingModel(targets.conv_norm(), 30, buffers="tracked", trained="5"))


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_wrapped_into_plain(wrapper: str) -> None:
    """The state dict of a wrapped model, with its prefixes, loads into a plain one, alone or inside another module."""
    trained = model()
    wrapped = WRAPPERS[wrapper](trained)
    wrapped(X)
    state = wrapped.state_dict()
    assert not set(state) & set(trained.state_dict())
    before = list(state)
    plain = MappingModel(targets.conv_norm(), 30, buffers="tracked", trained="5")
    plain.load_state_dict(state)
    assert list(state) == before
    assert torch.equal(plain.eval()(X), trained.eval()(X))
    larger = nn.ModuleDict({"model": MappingModel(targets.conv_norm(), 30, buffers="tracked", trained="5")})
    larger.load_state_dict({f"model.{key}": value for key, value in state.items()})
    assert torch.equal(larger.eval()["model"](X), trained(X))


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_plain_into_wrapped(wrapper: str) -> None:
    """And back: through the model inside, a plain state dict loads into a wrapped one."""
    trained = model()
    inner = MappingModel(targets.conv_norm(), 30, buffers="tracked", trained="5")
    wrapped = WRAPPERS[wrapper](inner)
    inner.load_state_dict(trained.state_dict())
    assert torch.equal(wrapped.eval()(X), trained.eval()(X))


def test_what_does_not_belong_is_still_an_error() -> None:
    """Only prefixes are taken off: an unknown key, or a missing one, is an error as ever."""
    plain = model()
    state = {f"module.{key}": value for key, value in plain.state_dict().items()}
    with pytest.raises(RuntimeError, match=r'Unexpected key.*"other"'):
        plain.load_state_dict({**state, "module.other": torch.zeros(1)})
    del state["module.latent"]
    with pytest.raises(RuntimeError, match=r'Missing key.*"latent"'):
        plain.load_state_dict(state)


def keys(path: Path) -> set[str]:
    """Return the names of a file's tensors."""
    with safetensors.safe_open(path, framework="pt") as file:
        return set(file.keys())


@pytest.mark.parametrize("wrapper", ["compiled", "compiled_distributed"])
def test_a_file_has_the_same_keys(wrapper: str, tmp_path: Path) -> None:
    """`save` of a wrapped model, directly or by a trainer, writes the file that the plain model writes."""
    trained = model()
    trained.save(tmp_path / "plain")
    wrapped = WRAPPERS[wrapper](trained)
    wrapped(X)
    trained.save(tmp_path / "inner")
    assert keys(tmp_path / "inner") == keys(tmp_path / "plain")
    if wrapper == "compiled":
        wrapped.save(tmp_path / "wrapped")
        assert keys(tmp_path / "wrapped") == keys(tmp_path / "plain")
        batch = (X, torch.arange(8) % 3)
        targets.trainer_of(wrapped, [batch], run_dir=tmp_path / "run").fit()
        *_, path = sorted(tmp_path.glob("run/**/model.safetensors"))
        assert keys(path) == keys(tmp_path / "plain")
        loaded = MappingModel.load(path, targets.conv_norm())
        assert torch.equal(loaded.eval()(X), trained.eval()(X))


@pytest.mark.parametrize("wrap", [compiled, nn.DataParallel])
def test_a_wrapped_target(wrap: Callable[[nn.Module], Any], tmp_path: Path) -> None:
    """A target that comes compiled or in DataParallel is mapped under its own names; files fit either."""
    trained = targets.moved(MappingModel(wrap(targets.mlp()), 16))
    assert set(trained.generate_weights()) == set(dict(targets.mlp().named_parameters()))
    x: Tensor = X.flatten(1)[:, :6]
    trained.save(tmp_path / "m")
    assert torch.equal(MappingModel.load(tmp_path / "m", targets.mlp())(x), trained(x))
    assert torch.equal(MappingModel.load(tmp_path / "m", wrap(targets.mlp()))(x), trained(x))
