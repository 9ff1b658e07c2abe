"""Dynamics models on real runs: how well they forecast, and what they cost. Nothing is jumped.

    python -m benchmarks.dynamics cost
    MAPPING_DATA=... python -m benchmarks.dynamics forecast --seeds 0 1 2

`cost` prints milliseconds of one CPU thread. `forecast` trains CNN2 on FashionMNIST, directly and through
a latent of 2,048, at the package's defaults, and asks every model after every 100th step where
the trained numbers will be; the table has medians over all questions: the cosine of the predicted and the real
displacement, the real share of the displacement that the prediction leaves (below 1: better than standing still),
and the variance stated over the mean squared error.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import defaultdict
from typing import Any

import torch
from torch import Tensor, nn

from mapping_core import Callback, DynamicsConfig, DynamicsModel, MappingModel, MappingTrainer
from mapping_core.contexts import DynamicsContext
from mapping_core.reference.data import DATA
from mapping_core.reference.models import CNN2
from mapping_plugin_dynamics import Dmd, Ema, Kalman, Linear, Lookahead, Ols, Random, Subspace

HORIZONS = [5, 20, 80]
COST_HORIZONS = [5, 10, 20, 40, 80]
SIZES = [2048, 20_000, 108_618]
MODELS: dict[str, DynamicsConfig] = {
    "`linear`": Linear(),
    "`ols`": Ols(),
    "`ols`, degree 2": Ols(degree=2),
    "`subspace`": Subspace(),
    "`dmd`": Dmd(),
    "`dmd`, 10 bags": Dmd(bags=10),
    "`kalman`": Kalman(),
    "`random`": Random(),
    "`ema`": Ema(),
    "`lookahead`": Lookahead(),
}
PREDICTING = [name for name in MODELS if name not in ("`ema`", "`lookahead`")]


def main() -> None:
    """Print the table that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["cost", "forecast"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--steps", type=int, default=1000)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.what == "cost":
        cost()
    else:
        forecast(options.seeds, options.steps)


def cost() -> None:
    """Milliseconds of a look, as a mean over 200 steps, and of five horizons, as a median of nine."""
    print(f"| model | {' | '.join(f'look, {size:,} | propose, {size:,}' for size in SIZES)} |")
    print("|---|" + "---|" * 2 * len(SIZES))
    for name, config in MODELS.items():
        cells = []
        for size in SIZES:
            path = torch.randn(200, size, generator=torch.Generator().manual_seed(0)).cumsum(0)
            model = config.build(DynamicsContext(size=size, seed=0))
            started = time.perf_counter()
            for step in range(200):
                model.observe(path[step], 1.0, step)
            cells.append(f"{(time.perf_counter() - started) / 200 * 1e3:.2f}")
            times = []
            for _ in range(9):
                started = time.perf_counter()
                model.propose(COST_HORIZONS)
                times.append(time.perf_counter() - started)
            cells.append(f"{statistics.median(times) * 1e3:.1f}")
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


class Questions(Callback):
    """Shows every step to all models; asks them after every 100th, and compares when the time has come."""

    def __init__(self, size: int, seed: int) -> None:
        self.models: dict[str, DynamicsModel] = {
            name: MODELS[name].build(DynamicsContext(size=size, seed=seed)) for name in PREDICTING
        }
        self.asked: dict[int, list[tuple[str, int, Tensor, Tensor, float]]] = defaultdict(list)
        self.answers: dict[tuple[str, int], list[tuple[float, float, float]]] = defaultdict(list)

    def on_batch_end(self, trainer: MappingTrainer, record: Any) -> None:
        vector = torch.cat([each.detach().flatten() for each in trainer.model.parameters() if each.requires_grad])
        for name, horizon, start, delta, variance in self.asked.pop(record.step, []):
            self.answers[name, horizon].append(compared(delta, vector - start, variance))
        for name, model in self.models.items():
            model.observe(vector, float(record.loss), record.step)
            if record.step % 100 == 0:
                for each in model.propose(HORIZONS):
                    assert each.variance is not None
                    question = (name, each.horizon, vector, each.delta, each.variance)
                    self.asked[record.step + each.horizon].append(question)


def compared(delta: Tensor, true: Tensor, variance: float) -> tuple[float, float, float]:
    """The cosine, what is left of the displacement's square, and the stated variance over the real one."""
    left = (delta - true).double().square()
    share = float(left.sum() / true.double().square().sum())
    return float(torch.cosine_similarity(delta, true, dim=0)), share, variance / float(left.mean())


def forecast(seeds: list[int], steps: int) -> None:
    """Medians over the questions of all seeds, for both tasks."""
    columns = " | ".join(f"cosine, {h} | left, {h} | variance, {h}" for h in HORIZONS)
    print(f"| trained | model | questions | {columns} |")
    print("|---|---|---|" + "---|" * 3 * len(HORIZONS))
    for task in ("a latent of 2,048", "CNN2 directly"):
        answers: dict[tuple[str, int], list[tuple[float, float, float]]] = defaultdict(list)
        for seed in seeds:
            for key, found in asked(task, seed, steps).items():
                answers[key].extend(found)
        for name in PREDICTING:
            medians = [
                f"{statistics.median(each):.2f}" for h in HORIZONS for each in zip(*answers[name, h], strict=True)
            ]
            print(f"| {task} | {name} | {len(answers[name, HORIZONS[0]])} | {' | '.join(medians)} |", flush=True)


def asked(task: str, seed: int, steps: int) -> dict[tuple[str, int], list[tuple[float, float, float]]]:
    """Train once, at the package's defaults, and return the answers."""
    train, _ = DATA["fashion_mnist"](evaluate_on="validation")
    torch.manual_seed(seed)
    model: nn.Module = CNN2()
    if task != "CNN2 directly":
        model = MappingModel(model, 2048, "slvt", seed=seed)
    questions = Questions(sum(each.numel() for each in model.parameters()), seed)
    MappingTrainer(
        model,
        train,
        max_steps=steps,
        max_epochs=100,
        seed=seed,
        accelerator="cpu",
        progress=False,
        callbacks=[questions],
    ).fit()
    return questions.answers


if __name__ == "__main__":
    main()
