"""Layer-wise: a deeper network, whose layers each have a latent of their own.

    python cookbook/layerwise_deeper_net.py

`slvt` has one latent for all layers. `layerwise` divides the same number of numbers among the layers, and
`grouped` among groups that you name. On digits all do about as well; which is best is for held-out data to say,
network by network. Runs on scikit-learn's digits in about half a minute.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import pairwise

import torch
from torch import nn

from mapping_core import GeneratorConfig, MappingModel, MappingTrainer
from mapping_core.reference.data import digits
from mapping_plugin_layerwise import Grouped, Layerwise


def deeper_net() -> nn.Module:
    """Eight convolutions on 8 x 8 images in three stages, and a head: 37,906 weights."""
    torch.manual_seed(0)

    def stage(*channels: int) -> nn.Sequential:
        layers: list[nn.Module] = []
        for narrow, wide in pairwise(channels):
            layers += [nn.Conv2d(narrow, wide, 3, padding=1), nn.BatchNorm2d(wide), nn.ReLU()]
        return nn.Sequential(*layers)

    stages = OrderedDict(
        first=stage(1, 24, 24, 24),
        halve=nn.MaxPool2d(2),
        second=stage(24, 24, 24, 24),
        third=nn.Sequential(nn.MaxPool2d(2), stage(24, 24, 24)),
        head=nn.Sequential(nn.Flatten(), nn.Linear(96, 10)),
    )
    return nn.Sequential(stages)


STRATEGIES: dict[str, str | GeneratorConfig] = {
    "one latent": "slvt",
    "a latent for each layer": Layerwise(budget="sqrt"),  # longer ones for larger layers
    "a latent for each stage": Grouped(groups={"first": ("first",), "second": ("second",), "rest": ("third", "head")}),
}


def main(epochs: int = 8) -> dict[str, float]:
    """Train with each strategy at the same number of numbers; return the accuracies on the held-out quarter."""
    train_loader, held_out = digits()
    accuracies = {}
    for name, strategy in STRATEGIES.items():
        model = MappingModel(deeper_net(), latent_dim=1024, strategy=strategy, buffers="tracked")
        assert sum(parameter.numel() for parameter in model.parameters()) == 1024
        history = MappingTrainer(model, train_loader, held_out, max_epochs=epochs, seed=0, progress=False).fit()
        accuracies[name] = history["val_accuracy"][-1]
        print(f"{name}: {100 * accuracies[name]:.1f} %")
    return accuracies


if __name__ == "__main__":
    main()
