"""The benchmark of predictive training: its clockwork and its arithmetic."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.prediction import __main__ as benchmark
from benchmarks.prediction import table, tasks
from benchmarks.prediction.measuring import reached
from benchmarks.prediction.methods import METHODS, Average, Lookahead
from mapping_core import MappingTrainer

STEPS = 60


def network(seed: int) -> nn.Module:
    """A linear layer."""
    torch.manual_seed(seed)
    return nn.Linear(4, 2)


@pytest.fixture
def task(monkeypatch: pytest.MonkeyPatch) -> str:
    """A task of a second."""
    x = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
    y = (x[:, 0] > 0).long()
    data = tasks.Data(DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True), (x, y), (x[:32], y[:32]))
    small = tasks.Task(data=lambda: data, model=network, steps=STEPS, grid=(0.01, 0.1))
    monkeypatch.setitem(tasks.TASKS, "tiny", small)
    return "tiny"


@pytest.mark.parametrize("method", METHODS)
def test_a_run(method: str, task: str) -> None:
    """Every method runs, is measured every 25 steps and at the end, and its losses fall."""
    row = benchmark.run(task, method, 0.1, 0, tasks.TASKS[task].data())
    points = row["points"]
    assert [point["step"] for point in points] == [25, 50, STEPS]
    for before, after in pairwise(points):
        assert after["train"] < before["train"]
        assert all(after[key] > before[key] for key in ("seconds", "cpu", "backward", "forward"))
    if METHODS[method].options == {}:
        assert points[-1]["backward"] == STEPS * 16
        assert points[-1]["forward"] == 3 * STEPS * 16


def test_the_same_start_and_batches(task: str) -> None:
    """Two runs of one seed are one run, to the bit."""
    data = tasks.TASKS[task].data()
    plain, again = (benchmark.run(task, "constant", 0.1, 0, data) for _ in range(2))
    assert [point["train"] for point in plain["points"]] == [point["train"] for point in again["points"]]


def test_lookahead_and_average() -> None:
    """Both do what their formulas say, beside training that goes on as it would."""
    x, y = torch.randn(32, 4), torch.randint(2, (32,))

    def trained(callbacks: list[Any]) -> torch.Tensor:
        model = network(0)
        loader = DataLoader(TensorDataset(x, y), batch_size=32)
        MappingTrainer(
            model, loader, max_epochs=5, seed=0, accelerator="cpu", progress=False, callbacks=callbacks
        ).fit()
        return torch.cat([each.detach().flatten() for each in model.parameters()])

    start = torch.cat([each.detach().flatten() for each in network(0).parameters()])
    average = Average()
    fast, slow = trained([average]), trained([Lookahead(k=5, alpha=0.5)])
    assert torch.equal(fast, trained([]))
    torch.testing.assert_close(slow, (start + fast) / 2)
    model = network(1)
    before = [each.detach().clone() for each in model.parameters()]
    take_back = average.lend(model)
    assert all(torch.equal(each, mean) for each, mean in zip(model.parameters(), average.average, strict=True))
    take_back()
    assert all(torch.equal(each, kept) for each, kept in zip(model.parameters(), before, strict=True))


def point(step: int, loss: float) -> dict[str, float]:
    """A measurement at which everything is the step."""
    return {key: float(step) for key in ("step", "seconds", "cpu", "backward", "forward")} | {"validation": loss}


def test_reached() -> None:
    """The moment lies between two measurements, at the first of them if it is there already, or nowhere."""
    points = [point(10, 3.0), point(20, 2.0), point(30, 2.5)]
    assert reached(points, "validation", 2.5) == pytest.approx(point(15, 2.5))
    assert reached(points, "validation", 3.5) == points[0]
    assert reached(points, "validation", 1.9) is None


def test_from_tuning_to_table(task: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rates are chosen on the tuning seeds, runs at them are shares of the plain run's, and runs that fail count."""
    rows = tmp_path / "rows"
    command = ["--task", task, "--method", "constant", "cosine", "--rows", str(rows)]
    benchmark.main(["run", *command])
    assert benchmark.tuned(benchmark.read(rows))[task, "constant"][0] == 0.1
    benchmark.main(["run", *command, "--tuned-by", str(rows), "--seeds", "0", "1"])
    benchmark.main(["run", *command, "--tuned-by", str(rows), "--seeds", "0", "1", "--factor", "0.5"])
    benchmark.main(["tuned", "--rows", str(rows)])
    benchmark.main(["table", "--rows", str(rows)])
    printed = capsys.readouterr().out
    assert "tiny constant: 0.1 (" in printed
    lines = [line for line in printed.splitlines() if line.startswith("| constant")]
    assert len(lines) == 2
    assert "| 0.1 | 2 |" in lines[0]
    assert "| 1.00 | 1.00 | 1.00 | 1.00 | " in lines[0]
    assert printed.count("| validation loss at the end |") == 2
    slow = printed[printed.index("rates times 0.5") :]
    assert "gap recovered" in slow
    assert "| 0.05 | 2 |" in slow
    assert {json.loads(line)["seed"] for line in rows.read_text("utf-8").splitlines()} == {0, 1, 100}
    assert table.page([], {}) == ""


def row(seed: int, losses: list[float], seconds: float = 1.0, **more: Any) -> dict[str, Any]:
    """A run measured every 25 steps, each of so many seconds."""
    points = [
        {**point(25 * index, loss), "seconds": 25 * seconds * index, "train": loss}
        for index, loss in enumerate(losses, start=1)
    ]
    return {"task": "tiny", "method": "constant", "rate": 0.1, "seed": seed, "factor": 1.0, "points": points, **more}


def test_the_table() -> None:
    """Targets come from the tuning run; ratios are medians of pairs, and runs that do not get there are infinite."""
    fall = [4.0 - 0.25 * index for index in range(16)]
    assert table.targets([row(100, fall)])[:2] == [("train", 1.625), ("train", 0.625)]
    rows = [row(seed, fall) for seed in range(3)]
    rows += [row(seed, fall, 0.5, method="sampled", phases=[PHASE]) for seed in range(2)]
    rows.append(row(2, [loss + 1.0 for loss in fall], 0.5, method="sampled", phases=[PHASE]))
    jump = {"phase": "predict", "steps": 0, "verdict": "accepted"}
    rows += [row(seed, fall, method="jumps", phases=[jump, {**jump, "verdict": "waiting"}]) for seed in range(3)]
    lines = table.page(rows, {"tiny": [row(100, fall)]}).splitlines()
    sampled = next(line for line in lines if line.startswith("| sampled"))
    assert "| +0.3333, +1.3067 | 0.50 | 1.00 | 1.00 | 1.00 |" in sampled
    assert "0.50 1.00 1.00 1.00 (2/3)" in sampled
    assert sampled.endswith("| 50 % sampled |")
    kept = next(line for line in lines if line.startswith("| jumps"))
    assert "**+0.0000**" in kept
    assert kept.endswith("| 1.0 of 1.0 jumps |")


PHASE = {"phase": "predict", "steps": 200, "seconds": 0.1, "gain": 1.5}
