"""Loaders for small public image sets.

`digits` comes with scikit-learn. The others are read from the folder that the environment
variable ``MAPPING_DATA`` names, as NumPy files (`SOURCES` says which); nothing is downloaded.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import torch
from attrs import define
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from mapping_core.errors import DataError

Loaders = tuple["DataLoader[Any]", "DataLoader[Any]"]
Arrays = tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]]

#: Which files each set is read from, below ``MAPPING_DATA``.
SOURCES = {
    "mnist": ("mnist/mnist.npz",),
    "fashion_mnist": ("fashion_mnist/fashion_mnist.npz",),
    "cifar10": ("cifar10/cifar10_train_a.npz", "cifar10/cifar10_test.npz"),
}

_VALIDATION_SHARE = 6  # one sixth: 10,000 of MNIST's 60,000


@define(frozen=True, eq=False)
class Images(Dataset[tuple[Tensor, Tensor]]):
    """Images [N, C, H, W] float32 and labels [N] int64 in memory; a batch is one indexing, not N."""

    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.x[index], self.y[index]

    def __getitems__(self, indices: list[int]) -> tuple[Tensor, Tensor]:
        chosen = torch.tensor(indices)
        return self.x[chosen], self.y[chosen]


def digits(*, batch_size: int = 64, evaluate_on: str = "test") -> Loaders:
    """scikit-learn's 1,797 handwritten digits, 8 x 8: three quarters to train, a quarter held out.

    With ``evaluate_on="validation"`` the held-out quarter is left alone and a sixth of the
    rest is evaluated on.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise DataError("data 'digits' needs scikit-learn: pip install scikit-learn") from error
    bunch = load_digits()
    # A fixed permutation: the original order groups writers, and a split must not move with a run's seed.
    order = numpy.random.RandomState(0).permutation(len(bunch.target))
    x, y = bunch.images[order][:, None] / 16.0, bunch.target[order]
    test = len(y) // 4
    return _loaders((x[test:], y[test:], x[:test], y[:test]), batch_size, evaluate_on)


def mnist(*, batch_size: int = 128, evaluate_on: str = "validation") -> Loaders:
    """MNIST, 28 x 28: 50,000 to train and 10,000 to validate, or 60,000 and the test set's 10,000."""
    return _loaders(_grey("mnist"), batch_size, evaluate_on)


def fashion_mnist(*, batch_size: int = 128, evaluate_on: str = "validation") -> Loaders:
    """FashionMNIST, 28 x 28: 50,000 to train and 10,000 to validate, or 60,000 and the test set's 10,000."""
    return _loaders(_grey("fashion_mnist"), batch_size, evaluate_on)


def cifar10(*, batch_size: int = 128, evaluate_on: str = "validation") -> Loaders:
    """A balanced part of CIFAR-10, 32 x 32 in colour: 10,000 images to train, 4,000 to test."""
    train, test = _read("cifar10")
    colour = tuple(numpy.moveaxis(part["x"], -1, 1) / 255.0 for part in (train, test))
    return _loaders((colour[0], train["y"], colour[1], test["y"]), batch_size, evaluate_on)


#: The sets by their built-in name.
DATA: dict[str, Callable[..., Loaders]] = {
    "digits": digits,
    "mnist": mnist,
    "fashion_mnist": fashion_mnist,
    "cifar10": cifar10,
}


def _grey(name: str) -> Arrays:
    (file,) = _read(name)
    return file["x_train"][:, None] / 255.0, file["y_train"], file["x_test"][:, None] / 255.0, file["y_test"]


def _read(name: str) -> list[dict[str, NDArray[Any]]]:
    folder = os.environ.get("MAPPING_DATA")
    if not folder:
        raise DataError(
            f"data {name!r} is read from files: set MAPPING_DATA to the folder that holds {' and '.join(SOURCES[name])}"
        )
    read = []
    for source in SOURCES[name]:
        path = Path(folder) / source
        if not path.is_file():
            raise DataError(f"data {name!r} needs {path}, which is not there: check MAPPING_DATA={folder}")
        with numpy.load(path, allow_pickle=False) as arrays:
            read.append(dict(arrays))
    return read


def _loaders(arrays: Arrays, batch_size: int, evaluate_on: str) -> Loaders:
    if batch_size < 1:
        raise DataError(f"batch_size must be at least 1, got {batch_size}")
    x, y, x_test, y_test = arrays
    if evaluate_on == "validation":
        kept = len(y) - len(y) // _VALIDATION_SHARE
        x, y, x_test, y_test = x[:kept], y[:kept], x[kept:], y[kept:]
    elif evaluate_on != "test":
        raise DataError(f"evaluate_on must be 'validation' or 'test', got {evaluate_on!r}")
    # Per channel, from the training part alone.
    mean, std = x.mean(axis=(0, 2, 3), keepdims=True), x.std(axis=(0, 2, 3), keepdims=True)
    sets = [
        Images(_float((part - mean) / std), torch.as_tensor(labels).long())
        for part, labels in ((x, y), (x_test, y_test))
    ]
    return (
        DataLoader(sets[0], batch_size=batch_size, shuffle=True, collate_fn=_as_it_is),
        DataLoader(sets[1], batch_size=1024, collate_fn=_as_it_is),
    )


def _float(array: NDArray[Any]) -> Tensor:
    return torch.from_numpy(array.astype(numpy.float32))


def _as_it_is(batch: Any) -> Any:
    """The data set gives whole batches: there is nothing to collate."""
    return batch
