"""Fine-tuning a pretrained network by modulation: a factor for each block, and small changes within, from one latent.

    python cookbook/modulation_finetuning.py

A network that knows upright digits learns mirrored ones from a few hundred images. What is stored for the new task is
the latent; without it the network is what it was. Runs on scikit-learn's digits in about twenty seconds.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Subset

from mapping_core import MappingModel, MappingTrainer
from mapping_core.reference.data import digits
from mapping_core.reference.models import DigitsCNN
from mapping_plugin_modulation import BlockScale, Finetune


class Mirrored(Dataset[tuple[Tensor, Tensor]]):
    """Images [1, 8, 8] of another set, mirrored."""

    def __init__(self, images: Dataset[tuple[Tensor, Tensor]]) -> None:
        self._images = images

    def __len__(self) -> int:
        return len(self._images)  # type: ignore[arg-type]

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        image, label = self._images[index]
        return image.flip(-1), label


def main(pretraining: int = 6, epochs: int = 30) -> tuple[float, float]:
    """Return the accuracies on mirrored digits of the held-out quarter, before and after."""
    train_loader, held_out = digits()
    few = DataLoader(Subset(Mirrored(train_loader.dataset), range(300)), batch_size=32, shuffle=True)
    mirrored = DataLoader(Mirrored(held_out.dataset), batch_size=256)

    torch.manual_seed(0)
    network = DigitsCNN()
    MappingTrainer(network, train_loader, max_epochs=pretraining, seed=0, progress=False).fit()
    upright = MappingTrainer(network, [], progress=False).test(held_out)["accuracy"]

    # Everything may change a little, and each block as a whole by its factor; the model starts as the network.
    model = MappingModel(network, latent_dim=256, strategy=Finetune(kind="deltas"), modulation=BlockScale(strength=0.1))
    trainer = MappingTrainer(model, few, max_epochs=epochs, learning_rate=0.1, seed=0, progress=False)
    before = trainer.test(mirrored)["accuracy"]
    trainer.fit()
    after = trainer.test(mirrored)["accuracy"]

    print(f"upright digits: {100 * upright:.1f} %, mirrored ones: {100 * before:.1f} %")
    print(f"mirrored ones with {model.latent_dim} numbers more: {100 * after:.1f} %")
    assert MappingTrainer(network, [], progress=False).test(held_out)["accuracy"] == upright  # it was not touched
    return before, after


if __name__ == "__main__":
    main()
