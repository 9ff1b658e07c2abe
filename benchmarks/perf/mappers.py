"""What each mapper costs: build, state, and the mapping's forward and backward beside `srht`'s.

    python -m benchmarks.perf.mappers [--rounds 30] [--without orthogonal]

CNN2 (108,618 weights), `slvt`, 2,048 numbers (`trajectory`: 40), one thread. In every round each
mapper takes its turn directly after `srht`; what is printed are medians, of the times and of
the ratios. Slow ones take fewer turns; `orthogonal` takes minutes to build.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from mapping_core import MapperConfig, MappingModel
from mapping_core.builtin.mappers import Orthogonal, Srht
from mapping_core.reference.models import CNN2
from mapping_plugin_mappers import Fastfood, Hash, Mlp, Seeded, Trajectory
from mapping_plugin_mappers.trajectory import TrajectoryRecorder

SLOW = 0.05  # seconds


def main() -> None:
    """Print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--without", nargs="*", default=[], help="mappers to leave out")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        cases: dict[str, tuple[MapperConfig, int]] = {
            "srht": (Srht(), 2048),
            "hash": (Hash(), 2048),
            "hash, k = 4": (Hash(k=4), 2048),
            "fastfood": (Fastfood(), 2048),
            "mlp": (Mlp(), 2048),
            "seeded": (Seeded(), 2048),
            "orthogonal": (Orthogonal(), 2048),
            "trajectory, d = 40": (Trajectory(path=basis(Path(folder), 40)), 40),
        }
        print("| mapper | build s | state, bytes a weight | forward + backward ms | / srht |")
        print("|---|---|---|---|---|")
        reference = mapping(MappingModel(CNN2(), 2048, "slvt"))
        for name, (mapper, latent_dim) in cases.items():
            if name in options.without:
                continue
            target = CNN2()
            started = time.perf_counter()
            model = MappingModel(target, latent_dim, "slvt", mapper=mapper)
            built = time.perf_counter() - started
            weights = sum(spec.numel for spec in model.layout.mapped)
            own, ratio = compare(mapping(model), reference, options.rounds)
            state = model.mapping_bytes() / weights
            print(f"| `{name}` | {built:.2f} | {state:.2f} | {1000 * own:.2f} | {ratio:.2f} |", flush=True)


def basis(folder: Path, count: int) -> Path:
    """A basis of random movements: as large as a trained one."""
    network = CNN2()
    recorder = TrajectoryRecorder(network)
    for _ in range(count):
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=0.01)
        recorder.record()
    recorder.save(folder / "basis", count)
    return folder / "basis"


def mapping(model: MappingModel) -> Callable[[], None]:
    """A function that generates the weights and takes a gradient back to the latent."""
    gradients = {name: torch.randn_like(weight) for name, weight in model.generate_weights().items()}

    def run() -> None:
        weights = model.generate_weights()
        torch.autograd.backward(list(weights.values()), [gradients[name] for name in weights])
        model.latent.grad = None

    return run


def compare(run: Callable[[], None], reference: Callable[[], None], rounds: int) -> tuple[float, float]:
    """The median of a function's seconds, and of their ratio to the reference's, in turns."""
    once = seconds(run)
    if once > SLOW:
        rounds = max(3, int(rounds * SLOW / once))
    pairs = [(seconds(reference), seconds(run)) for _ in range(rounds)]
    return statistics.median(own for _, own in pairs), statistics.median(own / other for other, own in pairs)


def seconds(run: Callable[[], None]) -> float:
    """How long one call takes."""
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
