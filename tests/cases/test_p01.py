"""P1: evaluation of norms. Source: BatchNorm under a mapping, which trained well and evaluated at chance."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from mapping_core import MappingModel
from mapping_core.reference.resnets import ResidualBlock
from tests import targets


def resnet() -> nn.Sequential:
    """Return a small residual network; [N, 1, 8, 8] -> [N, 4]."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        ResidualBlock(8, 8, 1),
        ResidualBlock(8, 12, 2),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(48, 4),
    )


def data() -> tuple[Tensor, Tensor]:
    """Noisy images of four patterns, off centre; a network gets most of them, not all."""
    generator = torch.Generator().manual_seed(3)
    labels = torch.arange(512) % 4
    patterns = torch.randn(4, 1, 8, 8, generator=generator)
    images = 0.45 * patterns[labels] + torch.randn(512, 1, 8, 8, generator=generator)
    return images * 3 + 5, labels


def accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    """Return the share of right answers over one batch, in the model's mode."""
    with torch.no_grad():
        return float((model(images).argmax(dim=1) == labels).float().mean())


@pytest.mark.parametrize("policy", ["frozen", "tracked", "batch"])
@pytest.mark.parametrize("start", ["fresh", "estimated"])
def test_evaluation_is_as_good_as_training(policy: str, start: str) -> None:
    """Trained a little, the model is within a point as accurate in evaluation mode as in training mode."""
    images, labels = data()
    target = resnet()
    if start == "estimated":
        with torch.no_grad():
            for _ in range(30):
                target(images)
    model = MappingModel(target, 600, "slvt", buffers=policy)
    batches = list(zip(torch.split(images, 128), torch.split(labels, 128), strict=True))
    targets.trainer_of(model, batches, max_epochs=10, learning_rate=0.05).fit()
    in_evaluation = accuracy(model.eval(), images, labels)
    exported = accuracy(model.export(), images, labels)
    in_training = accuracy(model.train(), images, labels)
    assert in_training > 0.7
    assert abs(in_training - in_evaluation) <= 0.01
    assert exported == in_evaluation
