"""The mapping loss: choose the weights of its terms on held-out training data, and test once.

    python cookbook/mapping_loss.py

`stability` asks that outputs change little when the latent does. How much it should count is a choice, made on a part
of the training data, never on the test data; or the weights are trained beside the latent. That it should
count nothing is a possible answer, and on these digits the usual one. Runs in about half a minute.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset, random_split

from mapping_core import LossConfig, MappingModel, MappingTrainer
from mapping_core.reference.data import digits
from mapping_core.reference.models import DigitsCNN
from mapping_plugin_mapping_loss import MappingLoss, Stability

CANDIDATES: dict[str, str | LossConfig] = {
    "the task's loss alone": "cross_entropy",
    "stability, weight 0.03": MappingLoss(task="cross_entropy", terms=[Stability(weight=0.03)]),
    "stability, weight 0.3": MappingLoss(task="cross_entropy", terms=[Stability(weight=0.3)]),
    # A trained weight starts at the one given; the term is evaluated in every second step, where it counts twice.
    "stability, trained weight": MappingLoss(
        task="cross_entropy", terms=[Stability(weight=0.1, every=2)], learned=True
    ),
}


def main(epochs: int = 8) -> tuple[str, float]:
    """Return the name of the loss that was chosen, and its accuracy on the test quarter."""
    train_loader, test_loader = digits()
    images, labels = (torch.cat(parts) for parts in zip(*train_loader, strict=True))
    parts = random_split(TensorDataset(images, labels), [0.8, 0.2], torch.Generator().manual_seed(0))
    training = DataLoader(parts[0], batch_size=32, shuffle=True)
    validation = DataLoader(parts[1], batch_size=256)

    def trainer_with(loss: str | LossConfig, loader: DataLoader[Any]) -> MappingTrainer:
        torch.manual_seed(0)
        model = MappingModel(DigitsCNN(), latent_dim=512)
        trainer = MappingTrainer(model, loader, loss=loss, max_epochs=epochs, seed=0, progress=False)
        trainer.fit()
        return trainer

    scores = {}
    for name, loss in CANDIDATES.items():
        scores[name] = trainer_with(loss, training).validate(validation)["loss"]  # the task's, comparable among all
        print(f"{name}: validation loss {scores[name]:.4f}")
    best = min(scores, key=scores.__getitem__)

    accuracy = trainer_with(CANDIDATES[best], train_loader).test(test_loader)["accuracy"]
    print(f"chosen: {best}; test accuracy {100 * accuracy:.1f} %")
    return best, accuracy


if __name__ == "__main__":
    main()
