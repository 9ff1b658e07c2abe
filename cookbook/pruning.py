"""Pruning: most of the generated weights, or whole channels, go while the latent trains.

    python cookbook/pruning.py

Runs on scikit-learn's digits in about half a minute.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch

from mapping_core import MappingModel, MappingTrainer
from mapping_core.reference.data import digits
from mapping_core.reference.models import DigitsCNN
from mapping_plugin_pruning import Pruned, Pruning, kept, shrink


def main(epochs: int = 15) -> tuple[float, float]:
    """Return the accuracies with a tenth of the weights, and with half of the channels, on the held-out quarter."""
    train_loader, held_out = digits()
    accuracies = []
    strategies = (Pruned(strategy="layerwise"), 0.1), (Pruned(strategy="layerwise", method="channels"), 0.5)
    for strategy, keep in strategies:
        torch.manual_seed(0)
        network = DigitsCNN()
        # The masks act on what `layerwise` generates; the callback tightens them between 10 and 60 % of the run.
        model = MappingModel(network, latent_dim=1024, strategy=strategy)
        trainer = MappingTrainer(
            model, train_loader, held_out, max_epochs=epochs, seed=0, callbacks=[Pruning(keep=keep)], progress=False
        )
        history = trainer.fit()
        accuracies.append(history["val_accuracy"][-1])
        print(f"{strategy.method}, keep {keep}: {100 * accuracies[-1]:.1f} %, {kept(model):,} weights are kept")

        plain = model.export()  # with zeros where masks are
        if strategy.method == "channels":  # zeros that are whole channels can be cut out
            plain = shrink(plain)
        print(f"  exported: {sum(int(p.count_nonzero()) for p in plain.parameters()):,} weights that are not 0")

        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "pruned.safetensors"
            model.save(path)  # the latent, and the masks as bits
            again = MappingModel.load(path, network)
            print(f"  saved: {path.stat().st_size:,} bytes")
        assert kept(again) == kept(model)
    return accuracies[0], accuracies[1]


if __name__ == "__main__":
    main()
