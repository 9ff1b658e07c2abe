"""The reference networks and data sets."""

from __future__ import annotations

from math import log
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from mapping_core import DataError
from mapping_core.reference.data import DATA, digits
from mapping_core.reference.models import MODELS, CharGPT

RANDOM = numpy.random.RandomState(0)


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give a folder of tiny files in the form of the public sets."""
    monkeypatch.setenv("MAPPING_DATA", str(tmp_path))
    for name in ("mnist", "fashion_mnist"):
        arrays = {
            "x_train": RANDOM.randint(0, 256, (30, 28, 28)).astype("uint8"),
            "y_train": RANDOM.randint(0, 10, 30).astype("uint8"),
            "x_test": RANDOM.randint(0, 256, (7, 28, 28)).astype("uint8"),
            "y_test": RANDOM.randint(0, 10, 7).astype("uint8"),
        }
        (tmp_path / name).mkdir()
        numpy.savez(tmp_path / name / f"{name}.npz", allow_pickle=False, **arrays)
    (tmp_path / "cifar10").mkdir()
    for part, count in (("train_a", 30), ("test", 7)):
        images = RANDOM.randint(0, 256, (count, 32, 32, 3)).astype("uint8")
        numpy.savez(tmp_path / "cifar10" / f"cifar10_{part}.npz", x=images, y=numpy.arange(count) % 10)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "weights", "size"),
    [
        ("cnn1", 537_994, (1, 28, 28)),
        ("cnn2", 108_618, (1, 28, 28)),
        ("digits_cnn", 38_282, (1, 8, 8)),
        ("resnet18", 11_173_962, (3, 32, 32)),
        ("resnet20", 269_722, (3, 32, 32)),
        ("resnet50", 23_520_842, (3, 32, 32)),
    ],
)
def test_networks(name: str, weights: int, size: tuple[int, ...]) -> None:
    """Each network has the number of weights it is known for, and ten logits an image."""
    model = MODELS[name]()
    assert sum(p.numel() for p in model.parameters()) == weights
    with torch.no_grad():
        assert model.eval()(torch.zeros(2, *size)).shape == (2, 10)


@pytest.mark.parametrize(("tied", "weights"), [(False, 826_433), (True, 818_048)])
def test_char_gpt(tied: bool, weights: int) -> None:
    """It has its number of weights, starts near a uniform guess, and no place sees what comes after it."""
    torch.manual_seed(0)
    model = CharGPT(tied=tied)
    assert sum(p.numel() for p in model.parameters()) == weights
    tokens = torch.randint(65, (2, 20))
    with torch.no_grad():
        logits = model(tokens)
        changed = model(torch.cat([tokens[:, :12], (tokens[:, 12:] + 1) % 65], dim=1))
    assert logits.shape == (2, 20, 65)
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens.roll(-1).flatten())
    # With one weight at both ends the token at hand is its own likeliest successor at first.
    assert abs(loss - log(65)) < (4 if tied else 1)
    torch.testing.assert_close(logits[:, :12], changed[:, :12])
    assert not torch.equal(logits[:, 12:], changed[:, 12:])
    with pytest.raises(ValueError, match="width must be a multiple of heads, got 10 and 4"):
        CharGPT(width=10)


def test_digits() -> None:
    """A quarter of the digits is held out, each image in exactly one part, the split the same each time."""
    train, test = digits()
    assert (len(train.dataset), len(test.dataset)) == (1348, 449)  # type: ignore[arg-type]
    (x, y), *_ = test
    assert (x.shape, x.dtype, y.dtype) == ((449, 1, 8, 8), torch.float32, torch.int64)
    assert torch.equal(next(iter(digits()[1]))[0], x)
    seen = {image.numpy().tobytes() for batch, _ in train for image in batch}
    image, label = test.dataset[3]
    assert torch.equal(image, x[3])
    assert label == y[3]
    assert len(seen & {image.numpy().tobytes() for image in x}) <= 2  # scans that are equal by chance
    assert set(y.tolist()) == set(range(10))


def test_validation_leaves_the_test_part_alone() -> None:
    """With evaluate_on="validation" a sixth of the training part is evaluated on, and no test image is seen."""
    train, validation = digits(evaluate_on="validation", batch_size=2000)
    assert (len(train.dataset), len(validation.dataset)) == (1124, 224)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["mnist", "fashion_mnist", "cifar10"])
def test_files(name: str, data: Path) -> None:
    """The sets read from files have channels first, normalised by the training part, in whole batches."""
    train, held_out = DATA[name](batch_size=10)
    assert (len(train.dataset), len(held_out.dataset)) == (25, 5)  # type: ignore[arg-type]
    x = torch.cat([batch for batch, _ in train])
    assert x.shape == (25, *((3, 32, 32) if name == "cifar10" else (1, 28, 28)))
    torch.testing.assert_close(x.mean((0, 2, 3)), torch.zeros(x.shape[1]), atol=1e-5, rtol=0)
    torch.testing.assert_close(x.std((0, 2, 3)), torch.ones(x.shape[1]), atol=1e-3, rtol=0)
    assert len(DATA[name](evaluate_on="test")[1].dataset) == 7  # type: ignore[arg-type]


def test_training_batches_are_shuffled_by_torchs_seed(data: Path) -> None:
    """The order of training batches follows torch's generator; the held-out ones never move."""

    def order(part: int, seed: int) -> list[Any]:
        torch.manual_seed(seed)
        return [int(label) for _, y in DATA["mnist"](batch_size=4)[part] for label in y]

    assert order(0, 1) == order(0, 1) != order(0, 2)
    assert order(1, 1) == order(1, 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"evaluate_on": "train"}, "evaluate_on must be 'validation' or 'test', got 'train'"),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], message: str) -> None:
    """An argument that makes no sense is refused by name."""
    with pytest.raises(DataError, match=message):
        digits(**arguments)


def test_where_the_files_are(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing file or variable is named; nothing is downloaded."""
    (data / "cifar10" / "cifar10_test.npz").unlink()
    with pytest.raises(
        DataError, match=r"'cifar10' needs .*cifar10_test\.npz, which is not there: check MAPPING_DATA="
    ):
        DATA["cifar10"]()
    monkeypatch.delenv("MAPPING_DATA")
    with pytest.raises(DataError, match="set MAPPING_DATA to the folder that holds mnist/mnist"):
        DATA["mnist"]()
