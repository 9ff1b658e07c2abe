"""The tasks: a network, its batches, and what it is probed on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import torch
from attrs import define
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from mapping_core import MappingModel
from mapping_core.reference.data import DATA, SOURCES
from mapping_core.reference.gpt import CharGPT
from mapping_core.reference.models import CNN2

Probe = tuple[Tensor, Tensor]
PROBED = 1000  # samples of the training part, and as many of the validation part


@define(frozen=True)
class Data:
    """Batches to train on, and a fixed sample of the training and of the validation part to measure the loss on."""

    batches: DataLoader[Any]
    train: Probe
    validation: Probe


@define(frozen=True, kw_only=True)
class Task:
    """`grid` is the learning rates of every method; `loss` is measured, and the component `trained` is the same."""

    data: Callable[[], Data]
    model: Callable[[int], nn.Module]
    steps: int
    grid: tuple[float, ...]
    loss: Callable[[Tensor, Tensor], Tensor] = nn.functional.cross_entropy
    trained: str = "cross_entropy"


class WeatherLSTM(nn.Module):
    """One LSTM layer and a linear one: [N, 24, 11] -> the next hour's PM2.5, [N]."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(11, 64, batch_first=True)
        self.head = nn.Linear(64, 1)

    def forward(self, x: Tensor) -> Tensor:
        last: Tensor = self.head(self.lstm(x)[0][:, -1])[:, 0]
        return last


class ChannelsLastCNN2(CNN2):
    """CNN2 whose activations lie channels last after the first layer, where a CPU pools them three times as fast."""

    def forward(self, x: Tensor) -> Tensor:
        first, *rest = self
        x = first(x).contiguous(memory_format=torch.channels_last)
        for layer in rest:
            x = layer(x)
        return x


def _seeded(build: Callable[[], nn.Module], seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return build()


def _mapped(seed: int) -> nn.Module:
    return MappingModel(_seeded(ChannelsLastCNN2, seed), 2048, "slvt", seed=seed)


def _fashion() -> Data:
    train, held_out = DATA["fashion_mnist"](evaluate_on="validation")
    return Data(train, _sample(train.dataset), _sample(held_out.dataset))


def _sample(images: Any) -> Probe:
    chosen = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))[:PROBED]
    return images.x[chosen], images.y[chosen]


def _beijing() -> Data:
    """Aotizhongxin: 24 hours of eleven columns, then the next hour's PM2.5; the first 70 % of the hours train."""
    with numpy.load(_folder() / "beijing_multisite" / "beijing_multisite.npz", allow_pickle=False) as arrays:
        columns = torch.from_numpy(arrays["x"][0])
    split = int(0.7 * len(columns))
    seen = columns[:split]
    mean = seen.nanmean(0)
    scaled = (columns - mean) / (seen - mean).square().nanmean(0).sqrt()
    target = scaled[24:, 0]
    windows = scaled.nan_to_num(0.0).unfold(0, 24, 1)[:-1].transpose(1, 2)  # missing: the mean
    known = target.isfinite()
    training = torch.arange(len(target)) < split - 24
    validating = (torch.arange(len(target)) >= split) & (torch.arange(len(target)) < int(0.85 * len(columns)) - 24)
    return _parts(windows, target, training & known, validating & known, batch=128)


def _shakespeare() -> Data:
    """Pieces of 64 characters and the characters after each; the first nine tenths train."""
    text = (_folder() / "tinyshakespeare" / "input.txt").read_text("utf-8")
    codes = {character: code for code, character in enumerate(sorted(set(text)))}
    tokens = torch.tensor([codes[character] for character in text])
    count = (len(tokens) - 1) // 64
    x, y = tokens[: 64 * count].view(count, 64), tokens[1 : 64 * count + 1].view(count, 64)
    training = torch.arange(count) < 0.9 * count
    return _parts(x, y, training, ~training, batch=32, probed=256)


def _parts(x: Tensor, y: Tensor, training: Tensor, validating: Tensor, *, batch: int, probed: int = PROBED) -> Data:
    probes = []
    for part in (training, validating):
        order = torch.randperm(int(part.sum()), generator=torch.Generator().manual_seed(0))[:probed]
        probes.append((x[part][order], y[part][order]))
    loader = DataLoader(TensorDataset(x[training].contiguous(), y[training]), batch_size=batch, shuffle=True)
    return Data(loader, *probes)


def _folder() -> Path:
    import os

    folder = os.environ.get("MAPPING_DATA")
    if not folder:
        raise SystemExit(f"set MAPPING_DATA to the folder that holds {', '.join(each[0] for each in SOURCES.values())}")
    return Path(folder)


class ClassesFirst(CharGPT):
    """Logits [N, characters, T], as cross-entropy takes them."""

    def forward(self, tokens: Tensor) -> Tensor:
        return super().forward(tokens).transpose(1, 2)


TASKS: dict[str, Task] = {
    "mapped": Task(
        data=_fashion,
        model=_mapped,
        steps=400,
        grid=(0.1, 0.2, 0.4, 0.8),
    ),
    "direct": Task(
        data=_fashion,
        model=lambda seed: _seeded(ChannelsLastCNN2, seed),
        steps=400,
        grid=(1e-3, 2e-3, 4e-3, 8e-3),
    ),
    "lstm": Task(
        data=_beijing,
        model=lambda seed: _seeded(WeatherLSTM, seed),
        steps=400,
        grid=(1e-3, 2e-3, 4e-3, 8e-3),
        loss=nn.functional.mse_loss,
        trained="mse",
    ),
    "gpt": Task(
        data=_shakespeare,
        model=lambda seed: _seeded(lambda: ClassesFirst(context=64, layers=2, width=64), seed),
        steps=400,
        grid=(1e-3, 2e-3, 4e-3, 8e-3),
    ),
}
