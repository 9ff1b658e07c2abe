"""Image classification: CNN1 or CNN2 through a latent, with the package's defaults, one line a run.

    MAPPING_DATA=... python -m benchmarks.classification --data fashion_mnist --strategy slvt --latent-dim 2048

Trains on the whole training set for a fixed number of epochs and reports the accuracy on the
test set after the last one; nothing is selected on it. ``--validation`` trains on five sixths
and reports on the sixth instead: for choices. ``--lrd 7=32`` decomposes the layer "7" at rank 32,
of the target itself with ``--strategy direct``; ``--keep 0.1`` prunes to a tenth, generated weights or the
target's own. The numbers of a row are what trains; of a pruned target, what is left.
"""

from __future__ import annotations

import argparse
import time

import torch
from torch import nn

from benchmarks.direct_pruning import DirectPruning, make_permanent
from mapping_core import Callback, CallbackConfig, GeneratorConfig, MappingModel, MappingTrainer
from mapping_core.reference.data import DATA
from mapping_core.reference.models import MODELS
from mapping_plugin_lrd import Lrd, factorize
from mapping_plugin_pruning import Pruned, Pruning


def main() -> None:
    """Run what the command line says and print a Markdown row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="fashion_mnist", choices=["mnist", "fashion_mnist"])
    parser.add_argument("--network", default="cnn2", choices=["cnn1", "cnn2"])
    parser.add_argument("--strategy", default="slvt", help="a strategy's name, or 'direct'")
    parser.add_argument("--lrd", metavar="PATTERN=RANK", help="layers as two thin factors")
    parser.add_argument("--keep", type=float, help="the part of the weights to keep")
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
    pattern, _, rank = (options.lrd or "").partition("=")
    ranks = {pattern: int(rank)} if options.lrd else {}
    name = (
        options.strategy
        + (f" + LRD {options.lrd}" if ranks else "")
        + (f" + keep {options.keep}" if options.keep else "")
    )
    callbacks: list[Callback | CallbackConfig]
    if options.strategy == "direct":
        callbacks = [DirectPruning(options.keep)] if options.keep else []
        model = factorize(model, rank=ranks, seed=options.seed) if ranks else model
    else:
        strategy: str | GeneratorConfig = options.strategy
        strategy = Lrd(rank=ranks, strategy=strategy) if ranks else strategy
        strategy = Pruned(strategy=strategy) if options.keep else strategy
        callbacks = [Pruning(keep=options.keep)] if options.keep else []
        model = MappingModel(model, options.latent_dim, strategy, mapper=options.mapper, seed=options.seed)
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
        callbacks=callbacks,
    ).fit()
    make_permanent(model)
    pruned = options.keep and options.strategy == "direct"
    numbers = sum(int((p != 0).sum()) if pruned else p.numel() for p in model.parameters())
    print(
        f"| {options.data} | {options.network} | {name} | {options.mapper} | {numbers:,} "
        f"| {options.epochs} | {options.seed} | {evaluate_on} | {100 * history['val_accuracy'][-1]:.2f} "
        f"| {100 * history['train_accuracy'][-1]:.2f} | {time.perf_counter() - started:.0f} s |",
        flush=True,
    )


if __name__ == "__main__":
    main()
