"""D8: a mapping that depends on the device. Source: pytorch issue 196613 (the generator depends on the GPU)."""

from __future__ import annotations

import copy
import hashlib
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from mapping_core import Mapper, MappingModel
from mapping_core.builtin.mappers import Orthogonal, Srht
from mapping_core.contexts import MapperContext
from tests import targets

SEED = 0x0123456789ABCDEF
#: SHA-256 of 100 outputs of `srht` for 16 small integers: whoever changes it changes every saved model.
SRHT = "8414679d66a80783abd850c4b8c83ac0876e15c7f546006cffc437114d222fa2"
#: The first outputs of `orthogonal`; LAPACKs differ in the last digits.
ORTHOGONAL = [4.932, -10.99957, 4.76142, 0.85634]

PROGRAM = """
import hashlib, torch
from mapping_core import MappingModel
from tests import targets
model = MappingModel(targets.mlp(), 16, {strategy!r}, mapper={mapper!r}, seed=5)
with torch.no_grad():
    model.latent.copy_(torch.arange(16) - 5)
weights = model.generate_weights().values()
print(hashlib.sha256(b"".join(weight.detach().numpy().tobytes() for weight in weights)).hexdigest())
"""


def latent(dtype: torch.dtype = torch.float32) -> Tensor:
    """Small integers: with 16 of them, every sum of `srht` is exact."""
    return torch.arange(16, dtype=dtype) - 5


def srht() -> Mapper:
    """Return the mapper whose output is known."""
    return Srht().build(MapperContext(in_features=16, out_features=100, seed=SEED, stream=7))


def digest(output: Tensor) -> str:
    """Return the SHA-256 of float32 numbers."""
    return hashlib.sha256(output.detach().float().cpu().contiguous().numpy().tobytes()).hexdigest()


def test_golden() -> None:
    """Both mappers give the numbers that they have always given, whatever torch's generator is at."""
    for seed in (0, 1):
        torch.manual_seed(seed)
        assert digest(srht()(latent())) == SRHT
        orthogonal = Orthogonal().build(MapperContext(in_features=16, out_features=100, seed=SEED, stream=7))
        torch.testing.assert_close(orthogonal(latent())[:4], torch.tensor(ORTHOGONAL), rtol=1e-4, atol=1e-4)


def test_after_conversions_and_copies() -> None:
    """The mapping is the same after `.to(float64)` and back, in float64, after `deepcopy` and `pickle`."""
    mapper = srht()
    assert digest(mapper.to(torch.float64)(latent(torch.float64))) == SRHT
    assert digest(mapper.to(torch.float32)(latent())) == SRHT
    assert digest(mapper.to(torch.bfloat16).float()(latent())) == SRHT
    assert digest(copy.deepcopy(mapper)(latent())) == SRHT
    assert digest(pickle.loads(pickle.dumps(mapper))(latent())) == SRHT  # noqa: S301 - our own bytes


@pytest.mark.parametrize("threads", [1, 3])
def test_whatever_the_number_of_threads(threads: int) -> None:
    """The number of threads changes nothing."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        assert digest(srht()(latent())) == SRHT
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("mapper", ["srht", "orthogonal"])
@pytest.mark.parametrize("strategy", ["slvt", "layerwise"])
def test_in_a_fresh_process_and_after_reload(mapper: str, strategy: str, tmp_path: Path) -> None:
    """Another process, and a model read from a file, generate the same bits."""
    model = MappingModel(targets.mlp(), 16, strategy, mapper=mapper, seed=5)
    with torch.no_grad():
        model.latent.copy_(latent())
    own = [weight.detach() for weight in model.generate_weights().values()]
    model.save(tmp_path / "m")
    loaded = MappingModel.load(tmp_path / "m", targets.mlp())
    assert all(torch.equal(a, b) for a, b in zip(loaded.generate_weights().values(), own, strict=True))
    if (mapper, strategy) == ("srht", "slvt"):  # one process is enough: starting it takes seconds
        program = PROGRAM.format(strategy=strategy, mapper=mapper)
        found = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
        assert found.stdout.split()[-1] == hashlib.sha256(b"".join(w.numpy().tobytes() for w in own)).hexdigest()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no other device than the CPU here")
@pytest.mark.parametrize("mapper", ["srht", "orthogonal"])
def test_on_another_device(mapper: str) -> None:
    """On a GPU, and after coming back from it, the mapping is the same."""
    assert digest(srht().to("cuda")(latent().to("cuda"))) == SRHT
    assert digest(srht().to("cuda").to("cpu")(latent())) == SRHT
    target = targets.mlp()
    model, there = (
        targets.moved(MappingModel(copy.deepcopy(target).to(device), 16, mapper=mapper)) for device in ("cpu", "cuda")
    )
    for name, weight in model.generate_weights().items():
        torch.testing.assert_close(there.generate_weights()[name].cpu(), weight)
