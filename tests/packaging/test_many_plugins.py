"""Thirty plugins installed beside one another: what finding them costs, and what a training step pays for them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pluggy
import pytest
import torch

import mapping_core.builtin
from mapping_core import MappingModel, MappingTrainer, Registry
from mapping_core.testing.worlds import OneLatentStrategy
from tests import targets

if TYPE_CHECKING:
    from tests.conftest import Site

PLUGIN = """
from attrs import define, field
from attrs.validators import ge
from mapping_core import MapperConfig, hookimpl

@define(frozen=True, kw_only=True)
class First(MapperConfig):
    name = "mapper_{index}"
    rank: int = field(default=3, validator=ge(1))

@hookimpl
def mapping_mappers():
    return [First]
"""

MEASURE = """
import json, sys, time
from mapping_core import Registry
from mapping_core.builtin import Srht
Registry.of()
start = time.perf_counter()
cpu = time.process_time()
registry = Registry.discover()
cpu = time.process_time() - cpu
wall = time.perf_counter() - start
print(json.dumps([cpu, wall, len(registry.plugins) - 1, "torch" in sys.modules]))
"""


@pytest.fixture
def thirty(site: Site) -> Site:
    """Install as many strangers beside our own plugins as make thirty, core's built-ins not counted."""
    own = len(Registry.discover().plugins) - 1
    for index in range(30 - own):
        site.add(f"stranger-{index}", PLUGIN.format(index=index), requires=("mapping-core>=0.1",))
    return site


def test_finding_them(thirty: Site) -> None:
    """Discovery of thirty, our own among them, takes under 200 ms of work in a fresh process, and no torch.

    `python -m benchmarks.plugins` on a quiet machine is where 100 ms is to be kept: the same work takes
    more CPU time beside another test process.
    """
    environment = {**os.environ, "PYTHONPATH": str(thirty.folder)}
    found: list[list[float]] = []
    while len(found) < 20 and (len(found) < 2 or min(found)[0] >= 0.2):
        # the first writes bytecode; more than two only on a machine that has other work too
        done = subprocess.run(
            [sys.executable, "-c", MEASURE], env=environment, capture_output=True, text=True, check=True
        )
        found.append(json.loads(done.stdout))
    cpu, wall, *_ = min(found)
    print(f"30 plugins: {1000 * cpu:.0f} ms of CPU, {1000 * wall:.0f} ms")  # noqa: T201 - shown by pytest -s
    assert cpu < 0.2
    assert all((count, torch_loaded) == (30, False) for *_, count, torch_loaded in found)


def test_a_step_pays_nothing_for_them(thirty: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """In training no hook is called, and listeners, states and steps are those without a plugin installed."""
    full, bare = Registry.discover(), Registry.of(mapping_core.builtin)
    assert len(full.plugins) == 31
    calls: list[str] = []
    call = pluggy.HookCaller.__call__

    def counted(self: pluggy.HookCaller, **arguments: object) -> object:
        calls.append(self.name)
        return call(self, **arguments)

    results = []
    for registry in (full, bare):
        model = MappingModel(targets.mlp(), 16, OneLatentStrategy(), registry=registry)
        trainer = targets.trainer_of(model, registry=registry)
        with monkeypatch.context() as patch:
            patch.setattr(pluggy.HookCaller, "__call__", counted)
            history = trainer.fit()
        results.append((history["train_loss"], listeners(trainer), model.latent_vector()))
    assert not calls
    assert results[0][:2] == results[1][:2]
    assert torch.equal(results[0][2], results[1][2])


def listeners(trainer: MappingTrainer) -> dict[str, list[str]]:
    """Who listens to each event, by name."""
    return {event: [each.__qualname__ for each in methods] for event, methods in trainer._events.listeners.items()}
