"""SLVT: classify images with a simple CNN whose 38,282 weights are expanded from 1,024 numbers.

    python cookbook/slvt_classification.py

Runs on scikit-learn's digits in about ten seconds.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch

from mapping_core import MappingModel, MappingTrainer
from mapping_core.reference.data import digits
from mapping_core.reference.models import DigitsCNN


def main(epochs: int = 15) -> float:
    """Train, save, load again, and return the accuracy on the held-out quarter."""
    train_loader, held_out = digits()

    torch.manual_seed(0)
    network = DigitsCNN()  # any nn.Module; it is read and never changed
    model = MappingModel(network, latent_dim=1024, strategy="slvt")
    print(model.summary())

    history = MappingTrainer(model, train_loader, held_out, max_epochs=epochs, seed=0).fit()

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "digits.safetensors"
        model.save(path)
        print(f"saved {path.stat().st_size:,} bytes")
        again = MappingModel.load(path, network)

    plain = again.export().eval()  # a DigitsCNN with its weights filled in
    images, labels = next(iter(held_out))
    with torch.no_grad():
        accuracy = float((plain(images).argmax(1) == labels).float().mean())
    assert abs(accuracy - history["val_accuracy"][-1]) < 1e-6
    return accuracy


if __name__ == "__main__":
    print(f"accuracy {100 * main():.1f} %")
