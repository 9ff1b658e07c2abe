"""Predictive training on two ranks: both decide alike, whatever each of them sees."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from mapping_core import GuardConfig, MappingModel, PredictionConfig, Thresholds
from tests import predictive, targets
from tests.integration.test_two_ranks import BadOnOneRank, rank_of
from tests.predictive import Cycle, Extrapolate, weights
from tests.processes import RANKS, on_two_ranks
from tests.unit.test_jumps import REGISTRY, trainer_of, verdicts


def jumping(folder: Path) -> dict[str, Any]:
    """A run with dropout, jumps of which some are kept, and one NaN on rank 1."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 3))
    prediction = PredictionConfig(
        policy=Cycle(),
        dynamics=Extrapolate(),
        guard=GuardConfig(**{**predictive.FREE, "tau": 0.02, "risk": 1000.0, "deviations": 0.0}),
        monitor=Thresholds(warmup=4, window=4, loss_sigmas=1e6),
    )
    trainer, _ = trainer_of(
        MappingModel(network, 16, "slvt", registry=REGISTRY),
        None,
        prediction=prediction,
        loader=DataLoader(TensorDataset(*targets.rows(48)), batch_size=4, shuffle=True),
        loss=BadOnOneRank(17, gradient=False),
        devices=RANKS,
    )
    history = trainer.fit()
    return {
        "rank": rank_of(trainer),
        "verdicts": [each.value for each in verdicts(trainer)],
        "errors": [each.prediction_error for each in history.outcomes],
        "recoveries": [[each.step, each.action.value] for each in history.recoveries],
        "weights": weights(trainer.model).tolist(),
        "step": trainer.step,
    }


def test_all_ranks_decide_alike(tmp_path: Path) -> None:
    """Verdicts, residuals, recoveries and weights are the same on both ranks, with a NaN that one of them sees."""
    first, second = on_two_ranks("tests.integration.test_two_ranks_predictive:jumping", tmp_path)
    assert {first.pop("rank"), second.pop("rank")} == {0, 1}
    assert first == second
    assert {"accepted", "rolled_back"} & set(first["verdicts"])
    assert first["recoveries"] or "rolled_back" in first["verdicts"]
