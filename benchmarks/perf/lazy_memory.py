"""Peak memory of one training step, eager against lazy generation, as torch's CPU allocator counts it.

    python -m benchmarks.perf.lazy_memory

Counts what is allocated from the start of the step on: not the base, not the latent. The first
step is left out, since libraries keep memory then that has nothing to do with weights.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from benchmarks.perf.memory import peak_bytes
from mapping_core import MappingModel
from mapping_core.reference.models import ResNet18

LATENT_DIM = 2048


def main() -> None:
    """Print a Markdown table for ResNet-18 on 32 x 32 images."""
    print("| batch | strategy | eager MB | lazy MB | lazy / eager | largest difference of gradients |")
    print("|---|---|---|---|---|---|")
    for batch in (1, 2):
        for strategy in ("slvt", "layerwise"):
            peaks, gradients = [], []
            for lazy in (False, True):
                peak, gradient = measure(strategy, batch, lazy=lazy)
                peaks.append(peak / 1e6)
                gradients.append(gradient)
            difference = (gradients[0] - gradients[1]).abs().max() / gradients[0].abs().max()
            print(
                f"| {batch} | {strategy} | {peaks[0]:.1f} | {peaks[1]:.1f} | {peaks[1] / peaks[0]:.2f} "
                f"| {float(difference):.1e} |"
            )


def measure(strategy: str, batch: int, *, lazy: bool) -> tuple[int, torch.Tensor]:
    """Peak bytes and the latent's gradient of one step."""
    torch.manual_seed(0)
    model = MappingModel(ResNet18(), LATENT_DIM, strategy, lazy=lazy).eval()
    x, y = torch.randn(batch, 3, 32, 32), torch.zeros(batch, dtype=torch.long)

    def step() -> None:
        model.latent.grad = None
        functional.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]

    step()
    peak = peak_bytes(step)
    assert model.latent.grad is not None
    return peak, model.latent.grad


if __name__ == "__main__":
    main()
