"""Small networks with known parameter counts."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional


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


class ResNet18(nn.Module):
    """ResNet-18 (He et al. 2016) with the 3 x 3 stem used for 32 x 32 images; 11,173,962 weights for 10 classes.

    Input [N, 3, H, W], output [N, classes] logits.

    >>> sum(p.numel() for p in ResNet18().parameters())
    11173962
    """

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU())
        blocks: list[nn.Module] = []
        channels = 64
        for width, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
            blocks += [ResidualBlock(channels, width, stride), ResidualBlock(width, width, 1)]
            channels = width
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(512, classes)

    def forward(self, x: Tensor) -> Tensor:
        features = self.blocks(self.stem(x)).mean(dim=(2, 3))
        logits: Tensor = self.head(features)
        return logits


class ResidualBlock(nn.Module):
    """Two 3 x 3 convolutions with BatchNorm, and a shortcut that projects where the shape changes."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, stride=stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != width:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels, width, 1, stride=stride, bias=False), nn.BatchNorm2d(width)
            )

    def forward(self, x: Tensor) -> Tensor:
        hidden = functional.relu(self.norm1(self.conv1(x)))
        hidden = self.norm2(self.conv2(hidden))
        return functional.relu(hidden + self.shortcut(x))


class CifarResNet(nn.Module):
    """The ResNet of depth 6n + 2 for CIFAR (He et al. 2016) with shortcuts without weights.

    `blocks` is n: 3 for ResNet-20, of 269,722 weights for 10 classes. Input [N, 3, 32, 32], output
    [N, classes] logits. Names are those of the usual pretrained files: conv1, bn1, layer1.0.conv1, linear.

    >>> sum(p.numel() for p in CifarResNet().parameters())
    269722
    """

    def __init__(self, classes: int = 10, *, blocks: int = 3) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1 = _stage(16, 16, blocks)
        self.layer2 = _stage(16, 32, blocks)
        self.layer3 = _stage(32, 64, blocks)
        self.linear = nn.Linear(64, classes)

    def forward(self, x: Tensor) -> Tensor:
        hidden = functional.relu(self.bn1(self.conv1(x)))
        features = self.layer3(self.layer2(self.layer1(hidden))).mean(dim=(2, 3))
        logits: Tensor = self.linear(features)
        return logits


def _stage(channels: int, width: int, blocks: int) -> nn.Sequential:
    return nn.Sequential(CifarBlock(channels, width), *(CifarBlock(width, width) for _ in range(blocks - 1)))


class CifarBlock(nn.Module):
    """Two 3 x 3 convolutions with BatchNorm; where channels grow, every second pixel and zeros are the shortcut."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.stride = 1 if channels == width else 2
        self.padding = (width - channels) // 2
        self.conv1 = nn.Conv2d(channels, width, 3, stride=self.stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        hidden = functional.relu(self.bn1(self.conv1(x)))
        hidden = self.bn2(self.conv2(hidden))
        if self.stride != 1:
            x = functional.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.padding, self.padding))
        return functional.relu(hidden + x)


def _conv_relu(channels: int, width: int, *, padding: int = 1) -> tuple[nn.Module, nn.Module]:
    return nn.Conv2d(channels, width, 3, padding=padding), nn.ReLU()


#: The networks by their built-in name.
MODELS: dict[str, type[nn.Module]] = {
    "cnn1": CNN1,
    "cnn2": CNN2,
    "digits_cnn": DigitsCNN,
    "resnet18": ResNet18,
    "resnet20": CifarResNet,
}
