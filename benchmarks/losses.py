"""What the terms of the mapping loss do for accuracy: the task's loss alone, with each term, and with all.

    python -m benchmarks.losses --data digits --seeds 0 1 2 3 4
    MAPPING_DATA=... python -m benchmarks.losses --data fashion_mnist --epochs 3 --seeds 0

DigitsCNN on scikit-learn's digits or CNN2 on 28 x 28 images, one latent (`slvt`), and the plugin's weights of terms as
they come. Accuracy is that after the last epoch on a sixth of the training set: this is where a term would be chosen.
"""

from __future__ import annotations

import argparse
import statistics

import torch

from mapping_core import LossConfig, MappingModel, MappingTrainer
from mapping_core.reference.data import DATA
from mapping_core.reference.models import MODELS
from mapping_plugin_mapping_loss import Alignment, MappingLoss, Smoothness, Stability

LOSSES: dict[str, str | LossConfig] = {
    "task alone": "cross_entropy",
    "+ stability": MappingLoss(task="cross_entropy", terms=Stability()),
    "+ smoothness": MappingLoss(task="cross_entropy", terms=Smoothness()),
    "+ alignment": MappingLoss(task="cross_entropy", terms=Alignment()),
    "+ all three": MappingLoss(task="cross_entropy"),
    "+ all three, learned weights": MappingLoss(task="cross_entropy", learned=True),
}
#: The network and the length of latent for each set.
SETTINGS = {"digits": ("digits_cnn", 512), "mnist": ("cnn2", 2048), "fashion_mnist": ("cnn2", 2048)}


def main() -> None:
    """Run what the command line says and print a Markdown row for each loss."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="digits", choices=list(SETTINGS))
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--only", nargs="+", choices=list(LOSSES), default=list(LOSSES))
    options = parser.parse_args()
    for name in options.only:
        runs = [measure(LOSSES[name], options.data, options.epochs, seed) for seed in options.seeds]
        accuracies = [100 * accuracy for accuracy, _ in runs]
        print(
            f"| {options.data} | {name} | {runs[0][1]:g} | {statistics.mean(accuracies):.2f} "
            f"| {min(accuracies):.2f} to {max(accuracies):.2f} |",
            flush=True,
        )


def measure(loss: str | LossConfig, data: str, epochs: int, seed: int) -> tuple[float, float]:
    """Train once: the accuracy on validation data, and the forward passes that the loss adds to a step."""
    network, latent_dim = SETTINGS[data]
    train, validation = DATA[data](evaluate_on="validation")
    torch.manual_seed(seed)
    model = MappingModel(MODELS[network](), latent_dim, "slvt", seed=seed)
    trainer = MappingTrainer(
        model, train, validation, loss=loss, max_epochs=epochs, seed=seed, accelerator="cpu", progress=False
    )
    accuracy = trainer.fit()["val_accuracy"][-1]
    return accuracy, float(getattr(trainer.loss, "forward_passes", 0.0))


if __name__ == "__main__":
    main()
