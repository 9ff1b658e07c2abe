"""Step time and memory of training through a latent, against training the same network directly.

    python -m benchmarks.perf.step_time [--rounds 20] [--threads 2]

A step is forward, backward and optimiser (AdamW, fused, on both sides). The methods take turns
in one process, and what is compared are medians, so that whatever else the machine does
meets all of them alike. Peak memory is what torch's allocator hands out during one step beyond
what was held before it; the optimiser's state is held before.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.perf.memory import peak_bytes
from mapping_core import MappingModel
from mapping_core.reference.models import CNN2, ResNet18

CASES: tuple[tuple[str, type[nn.Module], tuple[int, ...]], ...] = (
    ("CNN2", CNN2, (128, 1, 28, 28)),
    ("ResNet-18", ResNet18, (32, 3, 32, 32)),
)


def main() -> None:
    """Print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--latent-dim", type=int, default=2048)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(f"torch {torch.__version__}, {options.threads} threads, {options.rounds} rounds, d = {options.latent_dim}")
    print("| network | method | step ms | / direct | build s | mapping state MB | bytes a weight | step's peak MB |")
    print("|---|---|---|---|---|---|---|---|")
    for name, network, shape in CASES:
        compare(name, network, shape, options.rounds, options.latent_dim)


def compare(name: str, network: type[nn.Module], shape: tuple[int, ...], rounds: int, latent_dim: int) -> None:
    """Print the rows of one network."""
    torch.manual_seed(0)
    x, y = torch.randn(shape), torch.randint(0, 10, shape[:1])
    steps: dict[str, Callable[[], None]] = {"direct": training_step(network(), x, y)}
    notes = {"direct": "| | | "}
    weights = sum(parameter.numel() for parameter in network().parameters())
    for strategy in ("slvt", "layerwise"):
        target = network()
        started = time.perf_counter()
        model = MappingModel(target, latent_dim, strategy)
        built = time.perf_counter() - started
        steps[strategy] = training_step(model, x, y)
        size = model.mapping_bytes()
        notes[strategy] = f"| {built:.2f} | {size / 1e6:.2f} | {size / weights:.3f} "
    times: dict[str, list[float]] = {method: [] for method in steps}
    for _ in range(rounds):
        for method, step in steps.items():
            started = time.perf_counter()
            step()
            times[method].append(time.perf_counter() - started)
    medians = {method: statistics.median(measured[1:]) for method, measured in times.items()}
    for method, step in steps.items():
        ratio = medians[method] / medians["direct"]
        peak = peak_bytes(step) / 1e6
        row = f"| {name} | {method} | {1000 * medians[method]:.1f} | {ratio:.3f} {notes[method]}| {peak:.0f} |"
        print(row, flush=True)


def training_step(model: nn.Module, x: Tensor, y: Tensor) -> Callable[[], None]:
    """A function that makes one step."""
    optimizer = torch.optim.AdamW(list(model.parameters()), lr=1e-3, fused=True)

    def step() -> None:
        functional.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


if __name__ == "__main__":
    main()
