"""P19: what cannot be trained. Source: packages that fail deep inside, with a division by zero or an index."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from mapping_core import BudgetError, ConfigError, DataError, MappingModel, TargetError, UnknownComponentError
from tests import targets


class Zero(nn.Module):
    """A parameter without elements, and nothing else."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(0, 3))


def fit(**options: Any) -> None:
    """Train a little."""
    targets.trainer_of(None, options.pop("batches", None), **options).fit()


FAULTS: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "empty loader": (lambda: fit(batches=[]), DataError, "train_loader is empty: it has no batch to train on"),
    "empty iterator": (lambda: fit(batches=iter([])), DataError, "train_loader gave nothing to train on in epoch 0"),
    "no parameter": (lambda: MappingModel(nn.ReLU(), 4), TargetError, "ReLU has no parameter"),
    "a parameter of size 0": (lambda: MappingModel(Zero(), 4), TargetError, "Zero"),
    "a plain module without parameters": (
        lambda: targets.trainer_of(nn.Flatten()).fit(),
        TargetError,
        "Flatten has no trainable parameter",
    ),
    "accumulate=0": (lambda: fit(accumulate=0), ConfigError, r"accumulate: must be >= 1"),
    "accumulate=-1": (lambda: fit(accumulate=-1), ConfigError, r"accumulate: must be >= 1"),
    "accumulate=2.0": (lambda: fit(accumulate=2.0), ConfigError, r"accumulate: expected an integer"),
    "negative latent_dim": (lambda: MappingModel(targets.mlp(), -4), BudgetError, "latent_dim"),
    "latent_dim 0": (lambda: MappingModel(targets.mlp(), 0), BudgetError, "latent_dim"),
    "unknown strategy": (
        lambda: MappingModel(targets.mlp(), 16, "layrwise"),
        UnknownComponentError,
        "strategy: no generator named 'layrwise' is installed .*did you mean 'layerwise'",
    ),
    "unknown precision": (lambda: fit(precision="fp16"), ConfigError, "precision: .*16-mixed"),
    "unknown policy": (lambda: fit(nonfinite="ignore"), ConfigError, "nonfinite: .*'raise', 'skip', 'rollback'"),
    "clip_norm=0": (lambda: fit(clip_norm=0.0), ConfigError, "clip_norm: must be > 0"),
    "max_steps=0": (lambda: fit(max_steps=0), ConfigError, "max_steps: must be >= 1"),
    "checkpoint_every without a folder": (
        lambda: fit(checkpoint_every=5),
        ConfigError,
        "checkpoint_every: needs somewhere to write: set run_dir",
    ),
}


@pytest.mark.parametrize("name", list(FAULTS))
def test_one_clear_error(name: str) -> None:
    """One line that names the thing, before anything is trained."""
    make, error, message = FAULTS[name]
    with pytest.raises(error, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)
