"""Accuracy against the bytes of a file: CNN2 on FashionMNIST, with latents of few bits, and its rivals.

    MAPPING_DATA=... python -m benchmarks.bytes --validation --seeds 0
    MAPPING_DATA=... python -m benchmarks.bytes --seeds 0 1 2 --rows bytes.jsonl --plot docs/bytes.svg

Each row is one training with the package's defaults, of 24 epochs; bytes are those of the file on the disk.
The first command reports on a sixth of the training set, for choices; the second on the test set, after the last epoch.
``--only NAME ...`` runs some of the rows, ``--rows`` keeps them, and adds to what is there already.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from attrs import define
from torch import Tensor, nn
from torch.utils.data import DataLoader

from benchmarks.direct_pruning import DirectPruning, make_permanent
from benchmarks.scatter import Point, scatter
from mapping_core import MappingModel, MappingTrainer
from mapping_core.reference.data import fashion_mnist
from mapping_core.reference.models import CNN2
from mapping_plugin_quantize import Quantized, Quantizing
from mapping_plugin_quantize._codec import encode

Row = dict[str, Any]
Saved = Iterable[tuple[str, nn.Module, Callable[[Path], None]]]


@define(frozen=True, kw_only=True)
class Mapped:
    """A latent of `numbers` at `bits` (None: float32) in one file; `flips` mirrors half of the images."""

    numbers: int
    bits: int | None
    strategy: str = "layerwise"
    flips: bool = False

    def train(self, seed: int, evaluate_on: str, epochs: int) -> Saved:
        """Train it, and give what is to be evaluated, and how it is saved."""
        torch.manual_seed(seed)
        strategy = self.strategy if self.bits is None else Quantized(strategy=self.strategy, bits=self.bits)
        model = MappingModel(CNN2(), self.numbers, strategy, seed=seed)
        callbacks = [] if self.bits is None else [Quantizing()]
        fit(model, seed, evaluate_on, epochs, flips=self.flips, callbacks=callbacks)
        yield "", model, model.save


@define(frozen=True, kw_only=True)
class Direct:
    """All weights trained directly, and after that also at 8 bits; with `keep`, most are pruned on the way."""

    keep: float | None = None

    def train(self, seed: int, evaluate_on: str, epochs: int) -> Saved:
        """Train it, and give what is to be evaluated, and how it is saved."""
        torch.manual_seed(seed)
        model = CNN2()
        fit(model, seed, evaluate_on, epochs, callbacks=[] if self.keep is None else [DirectPruning(self.keep)])
        make_permanent(model)
        if self.keep is None:
            yield "float32", model, lambda path: safetensors.torch.save_model(model, str(path))
        codes, steps = eight_bits(model)
        yield "8 bits", model, lambda path: save_codes(codes, steps, path)


CONFIGURATIONS: dict[str, Mapped | Direct] = {
    "3.5 KB": Mapped(numbers=6_500, bits=3),
    "8 KB": Mapped(numbers=19_000, bits=3, flips=True),
    "16 KB": Mapped(numbers=42_500, bits=3, flips=True),
    "float32 latent": Mapped(numbers=2048, bits=None),
    "direct": Direct(),
    "direct, pruned to 10 %": Direct(keep=0.1),
}


def main() -> None:
    """Run what the command line says, print a Markdown row for each, and draw them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--validation", action="store_true", help="report on a sixth of the training set")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--epochs", type=int, default=24)
    parser.add_argument("--only", nargs="+", choices=list(CONFIGURATIONS), default=list(CONFIGURATIONS))
    parser.add_argument("--rows", type=Path, help="a file to add the rows to, as JSON, one a line")
    parser.add_argument("--plot", type=Path, help="an SVG file to draw accuracy against bytes in")
    options = parser.parse_args()
    evaluate_on = "validation" if options.validation else "test"
    known = [] if options.rows is None or not options.rows.exists() else options.rows.read_text().splitlines()
    rows: list[Row] = [json.loads(line) for line in known]
    done = {(row["name"], row["seed"], row["on"], row["epochs"]) for row in rows}
    for seed in options.seeds:
        for name in options.only:
            if (name, seed, evaluate_on, options.epochs) in done:
                continue
            for row in measure(name, seed, evaluate_on, options.epochs):
                rows.append(row)
                print(json.dumps(row), flush=True)
                if options.rows is not None:
                    with options.rows.open("a") as file:
                        file.write(json.dumps(row) + "\n")
    points = summarized([row for row in rows if (row["on"], row["epochs"]) == (evaluate_on, options.epochs)])
    for point in points:
        print(f"| {point.name} | {point.x:,.0f} | {point.y:.2f} | {point.low:.2f} to {point.high:.2f} |")
    if options.plot is not None:
        options.plot.write_text(scatter(points, x="bytes of the file", y="accuracy, %"))


def measure(name: str, seed: int, evaluate_on: str, epochs: int) -> Iterable[Row]:
    """Train one configuration once: a row for each file it gives."""
    started = time.perf_counter()
    _, evaluation = fashion_mnist(evaluate_on=evaluate_on)
    for form, model, save in CONFIGURATIONS[name].train(seed, evaluate_on, epochs):
        accuracy = MappingTrainer(model, [], progress=False, accelerator="cpu").test(evaluation)["accuracy"]
        with tempfile.TemporaryDirectory() as folder:
            save(Path(folder) / "m")
            size = (Path(folder) / "m").stat().st_size
        yield {
            "name": name,
            "form": form,
            "seed": seed,
            "on": evaluate_on,
            "epochs": epochs,
            "bytes": size,
            "accuracy": round(100 * accuracy, 2),
            "seconds": round(time.perf_counter() - started),
        }


def fit(
    model: nn.Module, seed: int, evaluate_on: str, epochs: int, *, flips: bool = False, callbacks: list[Any]
) -> None:
    """Train with the defaults; nothing is evaluated on the way."""
    loader, _ = fashion_mnist(evaluate_on=evaluate_on)
    if flips:
        loader = DataLoader(loader.dataset, batch_size=loader.batch_size, shuffle=True, collate_fn=flipped)
    trainer = MappingTrainer(
        model, loader, max_epochs=epochs, seed=seed, callbacks=callbacks, accelerator="cpu", progress=False
    )
    trainer.fit()


def flipped(batch: Any) -> tuple[Tensor, Tensor]:
    """The batch with half of its images mirrored, at random."""
    x, y = batch
    return torch.where(torch.rand(len(x), 1, 1, 1) < 0.5, x.flip(-1), x), y


def eight_bits(model: nn.Module) -> tuple[dict[str, Tensor], list[Tensor]]:
    """Round each tensor of a module to 255 levels of its own, in place; return their integers, and the steps."""
    codes, steps = {}, []
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            step = parameter.abs().max() / 127
            codes[name] = torch.round(parameter / step).int()
            parameter.copy_(codes[name] * step)
            steps.append(step)
    return codes, steps


def save_codes(codes: Mapping[str, Tensor], steps: list[Tensor], path: Path) -> None:
    """Write integers from -127 to 127, tensor by tensor in as many bytes as they need, and the float32 steps."""
    tensors = {}
    for name, integers in codes.items():
        stream = encode((integers.flatten() + 127).tolist(), [8] * integers.numel())
        tensors[name] = torch.frombuffer(bytearray(stream), dtype=torch.uint8)
    safetensors.torch.save_file({**tensors, "steps": torch.stack(steps)}, path)


def summarized(rows: list[Row]) -> list[Point]:
    """The means over seeds."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(f"{row['name']}{row['form'] and ', '}{row['form']}", []).append(row)
    return [
        Point(
            name=name,
            x=statistics.mean(row["bytes"] for row in group),
            y=statistics.mean(row["accuracy"] for row in group),
            low=min(row["accuracy"] for row in group),
            high=max(row["accuracy"] for row in group),
        )
        for name, group in groups.items()
    ]


if __name__ == "__main__":
    main()
