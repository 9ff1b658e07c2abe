"""Image classification: CNN1 or CNN2 through a latent, with the package's defaults, one line a run.

    MAPPING_DATA=... python -m benchmarks.classification --data fashion_mnist --strategy slvt --latent-dim 2048

Trains on the whole training set for a fixed number of epochs and reports the accuracy on the
test set after the last one; nothing is selected on it. ``--validation`` trains on five sixths
and reports on the sixth instead: for choices.
"""

from __future__ import annotations

import argparse
import time

import torch
from torch import nn

from mapping_core import MappingModel, MappingTrainer
from mapping_core.reference.data import DATA
from mapping_core.reference.models import MODELS


def main() -> None:
    """Run what the command line says and print a Markdown row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="fashion_mnist", choices=["mnist", "fashion_mnist"])
    parser.add_argument("--network", default="cnn2", choices=["cnn1", "cnn2"])
    parser.add_argument("--strategy", default="slvt", help="a strategy's name, or 'direct'")
    parser.add_argument("--mapper", default="srht")
    parser.add_argument("--latent-dim", type=int, default=2048)
    parser.add_argument("--learning-rate", type=float)
    parser.add_argument("--weight-decay", type=float, default=0.0)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--validation", action="store_true")
    options = parser.parse_args()

    evaluate_on = "validation" if options.validation else "test"
    train, evaluation = DATA[options.data](evaluate_on=evaluate_on)
    torch.manual_seed(options.seed)
    model: nn.Module = MODELS[options.network]()
    if options.strategy != "direct":
        model = MappingModel(model, options.latent_dim, options.strategy, mapper=options.mapper, seed=options.seed)
    started = time.perf_counter()
    history = MappingTrainer(
        model,
        train,
        evaluation,
        max_epochs=options.epochs,
        learning_rate=options.learning_rate,
        weight_decay=options.weight_decay,
        seed=options.seed,
        accelerator="cpu",
        progress=False,
    ).fit()
    numbers = sum(parameter.numel() for parameter in model.parameters())
    print(
        f"| {options.data} | {options.network} | {options.strategy} | {options.mapper} | {numbers:,} "
        f"| {options.epochs} | {options.seed} | {evaluate_on} | {100 * history['val_accuracy'][-1]:.2f} "
        f"| {100 * history['train_accuracy'][-1]:.2f} | {time.perf_counter() - started:.0f} s |",
        flush=True,
    )


if __name__ == "__main__":
    main()
