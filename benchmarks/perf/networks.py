"""The networks that are measured, with a batch for each."""

from __future__ import annotations

from collections.abc import Callable

import torch
from attrs import define
from torch import Tensor, nn
from torch.nn import functional

from mapping_core.reference.models import CNN2, CharGPT, DigitsCNN, ResNet18, ResNet50


@define(frozen=True)
class Network:
    """A network: how to build it, the shape of a batch and its classes, and how many rounds are measured."""

    title: str
    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    classes: int
    rounds: int
    tokens: bool = False

    def describe(self) -> str:
        """Title and number of weights."""
        return f"{self.title}, {sum(parameter.numel() for parameter in self.build().parameters()):,} weights"

    def batch(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Random inputs, and targets for each of the places that get logits."""
        if self.tokens:
            inputs = torch.randint(self.classes, self.shape)
            return inputs.to(device), torch.randint(self.classes, self.shape).to(device)
        return torch.randn(self.shape).to(device), torch.randint(self.classes, self.shape[:1]).to(device)


#: By the name for the command line; the last is tiny and only measured when it is asked for.
NETWORKS: dict[str, Network] = {
    "cnn2": Network("CNN2, 28 x 28, batch 128", CNN2, (128, 1, 28, 28), 10, 60),
    "char_gpt": Network("CharGPT, 16 x 128 tokens", CharGPT, (16, 128), 65, 15, tokens=True),
    "resnet18": Network("ResNet-18, 32 x 32, batch 32", ResNet18, (32, 3, 32, 32), 10, 8),
    "resnet50": Network("ResNet-50, 32 x 32, batch 8", lambda: ResNet50(classes=1000), (8, 3, 32, 32), 1000, 6),
    "digits": Network("DigitsCNN, 8 x 8, batch 16", DigitsCNN, (16, 1, 8, 8), 10, 20),
}
DEFAULT = ("cnn2", "char_gpt", "resnet18", "resnet50")


def loss_of(model: nn.Module, inputs: Tensor, classes: Tensor) -> Tensor:
    """Cross-entropy over all places that have logits."""
    return functional.cross_entropy(model(inputs).flatten(0, -2), classes.flatten())
