"""D14: random states. Sources: transformers issue 17032, ignite issue 2076 (RNG lost, or on the wrong device)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mapping_core import MappingModel, MappingTrainer
from mapping_core.training.checkpoint import STATE, checkpoints_in
from mapping_core.training.randomness import random_state, set_random_state
from mapping_core.training.state import read_state
from tests import targets


def dropping(folder: Path | None, steps: int | None) -> MappingTrainer:
    """A run of 6 steps with much dropout."""
    torch.manual_seed(0)
    model = MappingModel(nn.Sequential(nn.Dropout(0.5), *targets.mlp(), nn.Dropout(0.2)), 16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)  # whose rate does not depend on max_steps
    return targets.trainer_of(model, optimizer=optimizer, run_dir=folder, max_steps=steps)


def test_six_steps_are_three_and_three(tmp_path: Path) -> None:
    """With dropout, 6 steps and 3 + 3 give the same numbers bit for bit, whatever was drawn in between."""
    whole = dropping(None, None)
    whole.fit()
    dropping(tmp_path, 3).fit()
    torch.rand(100)
    resumed = dropping(tmp_path, None)
    resumed.fit(resume="last")
    assert resumed.step == whole.step == 6
    assert torch.equal(targets.latent_of(resumed), targets.latent_of(whole))


def tensors_in(nest: Any) -> list[Tensor]:
    """Every tensor of a nest."""
    if isinstance(nest, Tensor):
        return [nest]
    items = nest.values() if isinstance(nest, dict) else nest if isinstance(nest, list | tuple) else ()
    return [tensor for item in items for tensor in tensors_in(item)]


def test_random_states_are_kept_on_the_cpu(tmp_path: Path) -> None:
    """What is saved and read is on the CPU, also where a default device is another one."""
    dropping(tmp_path, 3).fit()
    with torch.device("meta"):  # as a script that makes its target there
        state = read_state(checkpoints_in(tmp_path)[-1] / STATE)
    (rank,) = state["ranks"]
    assert rank["random"]["torch"].dtype == torch.uint8
    assert {tensor.device.type for tensor in tensors_in(state)} == {"cpu"}
    before = random_state()
    set_random_state(rank["random"])
    drawn = torch.rand(3)
    set_random_state(rank["random"])
    assert torch.equal(torch.rand(3), drawn)
    set_random_state(before)
