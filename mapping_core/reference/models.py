"""Networks with known parameter counts."""

from __future__ import annotations

from torch import nn

from mapping_core.reference.gpt import CharGPT
from mapping_core.reference.resnets import CifarResNet, ResNet18, ResNet50


class CNN1(nn.Sequential):
    """The larger CNN of "Mapping Networks" (arXiv 2602.19134) for 28 x 28 images; 537,994 weights.

    Input [N, 1, 28, 28], output [N, 10] logits.
    """

    def __init__(self) -> None:
        super().__init__(
            *_conv_relu(1, 32),
            nn.MaxPool2d(2),
            *_conv_relu(32, 64),
            nn.MaxPool2d(2),
            *_conv_relu(64, 128),
            *_conv_relu(128, 128),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(1152, 256),
            nn.ReLU(),
            nn.Linear(256, 10),
        )


class CNN2(nn.Sequential):
    """The smaller CNN of "Mapping Networks" (arXiv 2602.19134) for 28 x 28 images; 108,618 weights.

    Input [N, 1, 28, 28], output [N, 10] logits.

    >>> sum(p.numel() for p in CNN2().parameters())
    108618
    """

    def __init__(self) -> None:
        super().__init__(
            *_conv_relu(1, 16, padding=0),
            nn.MaxPool2d(2),
            *_conv_relu(16, 32, padding=0),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(800, 128),
            nn.ReLU(),
            nn.Linear(128, 10),
        )


class DigitsCNN(nn.Sequential):
    """A small CNN for scikit-learn's 8 x 8 digits; 38,282 weights.

    Input [N, 1, 8, 8], output [N, 10] logits.

    >>> sum(p.numel() for p in DigitsCNN().parameters())
    38282
    """

    def __init__(self) -> None:
        super().__init__(
            *_conv_relu(1, 16),
            *_conv_relu(16, 32),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(512, 64),
            nn.ReLU(),
            nn.Linear(64, 10),
        )


def _conv_relu(channels: int, width: int, *, padding: int = 1) -> tuple[nn.Module, nn.Module]:
    return nn.Conv2d(channels, width, 3, padding=padding), nn.ReLU()


__all__ = ["CNN1", "CNN2", "MODELS", "CharGPT", "CifarResNet", "DigitsCNN", "ResNet18", "ResNet50"]

#: The networks by their built-in name.
MODELS: dict[str, type[nn.Module]] = {
    "cnn1": CNN1,
    "cnn2": CNN2,
    "digits_cnn": DigitsCNN,
    "resnet18": ResNet18,
    "resnet20": CifarResNet,
    "resnet50": ResNet50,
    "char_gpt": CharGPT,
}
