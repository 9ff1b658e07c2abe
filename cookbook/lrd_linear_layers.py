"""Low-rank decomposition: large linear layers as products of two thin ones, whose factors a latent generates.

    python cookbook/lrd_linear_layers.py

Runs on scikit-learn's digits in about ten seconds.
"""

from __future__ import annotations

import torch
from torch import nn

from mapping_core import MappingModel, MappingTrainer
from mapping_core.reference.data import digits
from mapping_plugin_lrd import Lrd, export_thin


def perceptron() -> nn.Module:
    """Two wide hidden layers: 85,002 weights."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)
    )


def main(epochs: int = 15) -> float:
    """Train factors, export thin layers, and return their accuracy on the held-out quarter."""
    train_loader, held_out = digits()
    # Rank 16 for the two hidden layers; the head stays whole. With base="zero" the weight is U V alone, and can be
    # run as two thin layers afterwards.
    strategy = Lrd(rank=16, layers=("1", "3"), strategy="layerwise")
    model = MappingModel(perceptron(), latent_dim=1024, strategy=strategy, base="zero")
    print(model.summary())
    history = MappingTrainer(model, train_loader, held_out, max_epochs=epochs, seed=0).fit()

    thin = export_thin(model).eval()
    print(f"{sum(p.numel() for p in perceptron().parameters()):,} weights as they were")
    print(f"{sum(p.numel() for p in thin.parameters()):,} weights to run, {model.latent_dim:,} numbers to store")
    images, labels = next(iter(held_out))
    with torch.no_grad():
        accuracy = float((thin(images).argmax(1) == labels).float().mean())
    assert abs(accuracy - history["val_accuracy"][-1]) < 0.01
    return accuracy


if __name__ == "__main__":
    print(f"accuracy {100 * main():.1f} %")
