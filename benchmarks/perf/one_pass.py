"""Writing weights in one pass against plain operations: forward and backward of the mapping alone.

    python -m benchmarks.perf.one_pass

Both take turns in one process; medians, beside a `copy_` of as many floats.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from torch import nn

from mapping_core import MappingModel, expansion
from mapping_core.reference.models import CNN2, ResNet18


def main() -> None:
    """Print a Markdown table."""
    print("| network | copy_ ms | plain ms | one pass ms | one pass / copy_ |")
    print("|---|---|---|---|---|")
    for name, network, rounds in (("CNN2", CNN2, 200), ("ResNet-18", ResNet18, 15)):
        compare(name, network, rounds)


def compare(name: str, network: type[nn.Module], rounds: int) -> None:
    """Print the row of one network, for `slvt` at 2,048 numbers."""
    model = MappingModel(network(), 2048, "slvt")
    gradients = {key: torch.randn_like(weight) for key, weight in model.generate_weights().items()}
    source = torch.randn(sum(gradient.numel() for gradient in gradients.values()))
    copied = torch.empty_like(source)

    def mapping() -> None:
        weights = model.generate_weights()
        torch.autograd.backward(list(weights.values()), [gradients[key] for key in weights])
        model.latent.grad = None

    times: dict[str, list[float]] = {"copy": [], "plain": [], "one pass": []}
    kept = expansion.WORTH_ONE_PASS
    for _ in range(rounds):
        times["copy"].append(seconds(lambda: copied.copy_(source)))
        expansion.WORTH_ONE_PASS = 1 << 62
        times["plain"].append(seconds(mapping))
        expansion.WORTH_ONE_PASS = 0
        times["one pass"].append(seconds(mapping))
    expansion.WORTH_ONE_PASS = kept
    copy, plain, one = (1000 * statistics.median(times[key][1:]) for key in ("copy", "plain", "one pass"))
    print(f"| {name} | {copy:.3f} | {plain:.2f} | {one:.2f} | {one / copy:.1f} |", flush=True)


def seconds(run: Callable[[], object]) -> float:
    """How long one call takes."""
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
