"""Fine-tuning a pretrained ResNet-20 from CIFAR-10 to FashionMNIST with 2,048 numbers, beside the usual ways.

    MAPPING_DATA=... python -m benchmarks.finetune [METHOD ...]

5,000 images to train, 2,000 others of the training set to choose each method's learning rate
(2 epochs a candidate), then 8 epochs at the chosen rate, from the start, and the 10,000 test
images once. Prints a Markdown row for each candidate and each method.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import torch
from attrs import define
from numpy.typing import NDArray
from torch import nn
from torch.utils.data import DataLoader

from mapping_core import MappingModel, MappingTrainer
from mapping_core.reference.data import Images
from mapping_core.reference.models import CifarResNet
from mapping_core.training.optimization import default_schedule
from mapping_plugin_modulation import Finetune

TRAIN, VALIDATION = 5_000, 2_000
HEAD_RATE = 0.005  # of a head that trains beside a latent


@define(frozen=True)
class Method:
    """A way to adapt the network: what it makes of it, and the learning rates to choose from."""

    prepare: Callable[[nn.Module], nn.Module]
    rates: tuple[float, ...]


def training_only(*patterns: str) -> Callable[[nn.Module], nn.Module]:
    """Train parameters whose names hold one of `patterns` directly, and nothing else."""

    def prepare(network: nn.Module) -> nn.Module:
        for name, parameter in network.named_parameters():
            parameter.requires_grad_(any(pattern in name for pattern in patterns))
        return network

    return prepare


def mapped(strategy: Finetune, latent_dim: int = 2048) -> Callable[[nn.Module], nn.Module]:
    """Train a latent, and the head directly: `latent_dim` numbers in all."""
    return lambda network: MappingModel(network, latent_dim, strategy, trained="linear", buffers="tracked")


METHODS = {
    "head": Method(training_only("linear"), (0.02, 0.08)),
    "norms + head": Method(training_only("linear", "bn"), (0.01, 0.03)),
    "gates": Method(mapped(Finetune(kind="gates")), (0.5, 1.5)),
    "deltas": Method(mapped(Finetune(kind="deltas")), (0.15, 0.45)),
    "deltas, layer3": Method(mapped(Finetune(blocks=["layer3"], kind="deltas")), (0.15, 0.45)),
    "all": Method(training_only(""), (0.003, 0.01)),
}


def pretrained(folder: Path) -> nn.Module:
    """Return the network with its CIFAR-10 weights and a new head."""
    states = torch.load(folder / "resnet20-12fca82f.th", map_location="cpu", weights_only=True)["state_dict"]
    torch.manual_seed(0)
    network = CifarResNet()
    network.load_state_dict({name.removeprefix("module."): tensor for name, tensor in states.items()})
    network.linear = nn.Linear(64, 10)
    return network


def images(x: NDArray[numpy.uint8], y: NDArray[numpy.uint8]) -> Images:
    """Grey images as the network knows them: padded to 32 x 32, three channels, normalised as for its training."""
    grey = nn.functional.pad(torch.from_numpy(x).float()[:, None] / 255, (2, 2, 2, 2)).expand(-1, 3, -1, -1)
    mean, std = (torch.tensor(each).view(3, 1, 1) for each in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    return Images((grey - mean) / std, torch.from_numpy(y).long())


def run(model: nn.Module, rate: float, epochs: int, train: Images, evaluation: Images, seed: int) -> float:
    """Train and return the accuracy after the last epoch, in %."""
    head = [p for name, p in model.named_parameters() if p.requires_grad and "linear" in name]
    rest = [p for name, p in model.named_parameters() if p.requires_grad and "linear" not in name]
    latent = isinstance(model, MappingModel)
    groups = [{"params": head, "lr": HEAD_RATE if latent else rate}, {"params": rest, "lr": rate}]
    optimizer = torch.optim.AdamW([group for group in groups if group["params"]], weight_decay=0.0)
    loader = DataLoader(train, batch_size=128, shuffle=True, collate_fn=_as_it_is)
    trainer = MappingTrainer(
        model,
        loader,
        max_epochs=epochs,
        optimizer=optimizer,
        scheduler=default_schedule(optimizer, kind="cosine", warmup=0.05, total_steps=epochs * len(loader)),
        seed=seed,
        accelerator="cpu",
        progress=False,
    )
    trainer.fit()
    return 100 * trainer.validate(DataLoader(evaluation, batch_size=1000, collate_fn=_as_it_is))["accuracy"]


def _as_it_is(batch: Any) -> Any:
    return batch


def main() -> None:
    """Run the methods that the command line names, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("methods", nargs="*", default=[*METHODS], metavar="METHOD", help=", ".join(METHODS))
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    data = Path(os.environ["MAPPING_DATA"])
    with numpy.load(data / "fashion_mnist" / "fashion_mnist.npz") as arrays:
        order = numpy.random.RandomState(0).permutation(len(arrays["y_train"]))
        train, validation = (
            images(arrays["x_train"][part], arrays["y_train"][part])
            for part in (order[:TRAIN], order[TRAIN : TRAIN + VALIDATION])
        )
        test = images(arrays["x_test"], arrays["y_test"])
    print("| method | trained numbers | learning rate | epochs | on | accuracy % | time |")
    print("|---|---|---|---|---|---|---|")
    for name in options.methods:
        method = METHODS[name]
        found: dict[float, float] = {}
        runs = [(rate, 2, "validation", validation) for rate in method.rates]
        for rate, epochs, on, evaluation in runs:
            started = time.perf_counter()
            model = method.prepare(pretrained(data / "pretrained_resnet_cifar"))
            numbers = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
            accuracy = run(model, rate, epochs, train, evaluation, options.seed)
            print(
                f"| {name} | {numbers:,} | {rate} | {epochs} | {on} | {accuracy:.2f} "
                f"| {time.perf_counter() - started:.0f} s |",
                flush=True,
            )
            found[rate] = accuracy
            if len(found) == len(method.rates) and on == "validation":
                runs.append((max(found, key=found.__getitem__), options.epochs, "test", test))


if __name__ == "__main__":
    main()
