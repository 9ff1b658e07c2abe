"""Accuracy of every mapper against a dense one: CNN2 on FashionMNIST, one recipe, several seeds.

    MAPPING_DATA=... python -m benchmarks.mappers

Trains on five sixths of the training set with the package's defaults (`slvt`) and reports the
accuracy on the other sixth after the last epoch, as a Markdown table: the mean over seeds, each
seed, and the difference to the dense reference `orthogonal`. A seed sets the network's
initialisation, the mapping and the order of the data. ``--runs FILE`` keeps each run's result
in a file and does not repeat what is there, so a table can be made in parts.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import torch
from attrs import define
from torch import Tensor

from mapping_core import Mapper, MapperConfig, MappingModel, MappingTrainer
from mapping_core.builtin.mappers import Orthogonal, Srht
from mapping_core.contexts import MapperContext
from mapping_core.reference.data import DATA
from mapping_core.reference.models import CNN2
from mapping_plugin_mappers import Fastfood, Hash, Mlp, Seeded

REFERENCE = "orthogonal"


@define(frozen=True, kw_only=True)
class StoredSeeded(MapperConfig):
    """`seeded` with its matrix drawn once and kept: the same numbers, affordable in a benchmark."""

    name = "seeded_stored"

    def build(self, context: MapperContext) -> Mapper:
        return _Stored(Seeded().build(context))


class _Stored(Mapper):
    matrix: Tensor

    def __init__(self, mapper: Mapper) -> None:
        super().__init__(mapper.in_features, mapper.out_features)
        self.register_buffer("matrix", mapper(torch.eye(mapper.in_features)), persistent=False)

    def forward(self, z: Tensor) -> Tensor:
        return z @ self.matrix


MAPPERS: dict[str, MapperConfig] = {
    REFERENCE: Orthogonal(),
    "srht": Srht(),
    "hash": Hash(),
    "hash, k = 4": Hash(k=4),
    "fastfood": Fastfood(),
    "seeded": StoredSeeded(),
    "mlp": Mlp(),
}


def main() -> None:
    """Make the runs that are missing, and print the table of all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mappers", nargs="+", default=list(MAPPERS), choices=list(MAPPERS))
    parser.add_argument("--latent-dim", type=int, default=2048)
    parser.add_argument("--learning-rate", type=float, help="default: the package's, which depends on the latent")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--runs", type=Path, help="a file of one JSON line a run")
    options = parser.parse_args()
    lines = options.runs.read_text(encoding="utf-8").splitlines() if options.runs and options.runs.exists() else []
    results: dict[tuple[object, ...], float] = {tuple(key): value for key, value in map(json.loads, lines)}
    table: dict[str, list[float]] = {}
    for name in options.mappers:
        for seed in options.seeds:
            key = (name, options.latent_dim, options.learning_rate, options.epochs, seed)
            if key not in results:
                results[key] = accuracy(MAPPERS[name], *key[1:])
                if options.runs:
                    with options.runs.open("a", encoding="utf-8") as file:
                        file.write(json.dumps([key, results[key]]) + "\n")
            table.setdefault(name, []).append(results[key])
    show(table, options.seeds)


def accuracy(mapper: MapperConfig, latent_dim: int, learning_rate: float | None, epochs: int, seed: int) -> float:
    """Percent right on the held-out sixth of the training set, after the last epoch."""
    train, held_out = DATA["fashion_mnist"](evaluate_on="validation")
    torch.manual_seed(seed)
    model = MappingModel(CNN2(), latent_dim, "slvt", mapper=mapper, seed=seed)
    started = time.perf_counter()
    history = MappingTrainer(
        model,
        train,
        held_out,
        max_epochs=epochs,
        learning_rate=learning_rate,
        seed=seed,
        accelerator="cpu",
        progress=False,
    ).fit()
    found = 100 * float(history["val_accuracy"][-1])
    print(f"{mapper}, seed {seed}: {found:.2f} in {time.perf_counter() - started:.0f} s", flush=True)
    return found


def show(table: dict[str, list[float]], seeds: list[int]) -> None:
    """Print the Markdown table."""
    reference = table.get(REFERENCE)
    print(f"| mapper | mean % | {' | '.join(f'seed {seed}' for seed in seeds)} | mean - {REFERENCE} |")
    print("|---" * (len(seeds) + 3) + "|")
    for name, found in table.items():
        mean = statistics.mean(found)
        difference = f"{mean - statistics.mean(reference):+.2f}" if reference and name != REFERENCE else ""
        print(f"| `{name}` | {mean:.2f} | {' | '.join(f'{each:.2f}' for each in found)} | {difference} |")


if __name__ == "__main__":
    main()
