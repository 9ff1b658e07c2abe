"""What a trained basis is worth: CNN2 on FashionMNIST, few numbers on a recorded run's directions.

    MAPPING_DATA=... python -m benchmarks.trajectory

Trains CNN2 directly with `TrajectoryRecorder`, then from the same initial weights through
latents of a few numbers: on the basis, and on `srht`'s random directions. Five sixths of the
training set throughout; accuracy on the other sixth after the last epoch.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch
from torch import nn

from mapping_core import Callback, MapperConfig, MappingModel, MappingTrainer
from mapping_core.builtin.mappers import Srht
from mapping_core.reference.data import DATA
from mapping_core.reference.models import CNN2
from mapping_plugin_mappers import Trajectory
from mapping_plugin_mappers.trajectory import TrajectoryRecorder


def main() -> None:
    """Print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--numbers", type=int, nargs="+", default=[10, 40])
    parser.add_argument("--recorded-epochs", type=int, default=2)
    parser.add_argument("--every", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    print("| trained | numbers | floats of the basis | validation % |")
    print("|---|---|---|---|")
    network = initial(options.seed)
    recorder = TrajectoryRecorder(network, every=options.every)
    weights = sum(parameter.numel() for parameter in network.parameters())
    found = accuracy(network, options.recorded_epochs, options.seed, [recorder])
    print(f"| directly, {options.recorded_epochs} epochs | {weights:,} | | {found:.2f} |", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "basis.safetensors"
        recorder.save(path, max(options.numbers))
        for count in options.numbers:
            mappers: tuple[MapperConfig, ...] = (Trajectory(path=path), Srht())
            for mapper in mappers:
                model = MappingModel(initial(options.seed), count, "slvt", mapper=mapper, seed=options.seed)
                found = accuracy(model, options.epochs, options.seed, [])
                floats = f"{count * weights:,}" if isinstance(mapper, Trajectory) else "0"
                print(f"| `{mapper.name}`, {options.epochs} epochs | {count} | {floats} | {found:.2f} |", flush=True)


def initial(seed: int) -> CNN2:
    """The network as it is before training."""
    torch.manual_seed(seed)
    return CNN2()


def accuracy(model: nn.Module, epochs: int, seed: int, callbacks: list[Callback]) -> float:
    """Percent right on the held-out sixth after the last epoch of the package's defaults."""
    train, held_out = DATA["fashion_mnist"](evaluate_on="validation")
    trainer = MappingTrainer(
        model,
        train,
        held_out,
        max_epochs=epochs,
        seed=seed,
        accelerator="cpu",
        progress=False,
        callbacks=callbacks,
    )
    return 100 * float(trainer.fit()["val_accuracy"][-1])


if __name__ == "__main__":
    main()
