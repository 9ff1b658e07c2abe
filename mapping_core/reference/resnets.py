"""Residual networks for 32 x 32 images (He et al. 2016, "Deep Residual Learning")."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional


class ResNet(nn.Module):
    """Stem, four stages of blocks, mean over the image, head; [N, 3, H, W] -> [N, classes] logits.

    `block` makes a block of (channels, width, stride) and says as `expansion` how many times `width` it returns.
    """

    def __init__(self, block: type[ResidualBlock | BottleneckBlock], depths: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU())
        blocks: list[nn.Module] = []
        channels = 64
        for width, stride, depth in zip((64, 128, 256, 512), (1, 2, 2, 2), depths, strict=True):
            for index in range(depth):
                blocks.append(block(channels, width, stride if index == 0 else 1))
                channels = width * block.expansion
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        features = self.blocks(self.stem(x)).mean(dim=(2, 3))
        logits: Tensor = self.head(features)
        return logits


class ResNet18(ResNet):
    """ResNet-18; 11,173,962 weights for 10 classes.

    >>> sum(p.numel() for p in ResNet18().parameters())
    11173962
    """

    def __init__(self, classes: int = 10) -> None:
        super().__init__(ResidualBlock, (2, 2, 2, 2), classes)


class ResNet50(ResNet):
    """ResNet-50; 23,520,842 weights for 10 classes, 25,549,352 for 1,000.

    >>> sum(p.numel() for p in ResNet50(classes=1000).parameters())
    25549352
    """

    def __init__(self, classes: int = 10) -> None:
        super().__init__(BottleneckBlock, (3, 4, 6, 3), classes)


class ResidualBlock(nn.Module):
    """Two 3 x 3 convolutions with BatchNorm, and a shortcut that projects where the shape changes."""

    expansion = 1

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, stride=stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.shortcut = _shortcut(channels, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        hidden = functional.relu(self.norm1(self.conv1(x)))
        hidden = self.norm2(self.conv2(hidden))
        return functional.relu(hidden + self.shortcut(x))


class BottleneckBlock(nn.Module):
    """A 3 x 3 convolution between two 1 x 1 ones, with BatchNorm; returns 4 x `width` channels."""

    expansion = 4

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.norm3 = nn.BatchNorm2d(4 * width)
        self.shortcut = _shortcut(channels, 4 * width, stride)

    def forward(self, x: Tensor) -> Tensor:
        hidden = functional.relu(self.norm1(self.conv1(x)))
        hidden = functional.relu(self.norm2(self.conv2(hidden)))
        hidden = self.norm3(self.conv3(hidden))
        return functional.relu(hidden + self.shortcut(x))


def _shortcut(channels: int, width: int, stride: int) -> nn.Module:
    if stride == 1 and channels == width:
        return nn.Identity()
    return nn.Sequential(nn.Conv2d(channels, width, 1, stride=stride, bias=False), nn.BatchNorm2d(width))


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
