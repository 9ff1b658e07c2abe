"""A mapped model in a loop that accelerate prepared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mapping_core import MappingModel
from tests import targets

pytest.importorskip("accelerate", reason="an optional test dependency: pip install accelerate")

from accelerate import Accelerator
from accelerate.state import AcceleratorState


def loop(accelerator: Accelerator, model: nn.Module, *, epochs: int) -> list[float]:
    """Train as accelerate's documentation shows it; return the losses."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 100)
    model, optimizer, batches, scheduler = accelerator.prepare(model, optimizer, targets.loader(), scheduler)
    losses = []
    for _ in range(epochs):
        for x, classes in batches:
            with accelerator.accumulate(model):
                loss: Tensor = nn.functional.cross_entropy(model(x), classes)
                accelerator.backward(loss)
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
                losses.append(loss.item())
    return losses


def accelerator_of(**options: Any) -> Accelerator:
    """An accelerator on the CPU; its settings are one for the whole process until they are reset."""
    AcceleratorState._reset_state(reset_partial_state=True)
    return Accelerator(cpu=True, **options)


@pytest.mark.parametrize("strategy", ["slvt", "layerwise"])
def test_prepared_loop(strategy: str, tmp_path: Path) -> None:
    """The loss falls; state is saved and loaded; the file of the unwrapped model loads onto a fresh target."""
    model = MappingModel(targets.conv_norm(), 24, strategy)
    mlp = MappingModel(targets.mlp(), 24, strategy)
    accelerator = accelerator_of()
    losses = loop(accelerator, mlp, epochs=15)
    assert losses[-1] < losses[0] - 0.1
    accelerator.save_state(str(tmp_path / "state"))
    trained = mlp.latent_vector()
    with torch.no_grad():
        mlp.latent.zero_()
    accelerator.load_state(str(tmp_path / "state"))
    assert torch.equal(mlp.latent_vector(), trained)
    unwrapped = accelerator.unwrap_model(accelerator.prepare(model))
    assert unwrapped is model
    unwrapped.save(tmp_path / "model.safetensors")
    assert MappingModel.load(tmp_path / "model.safetensors", targets.conv_norm()).latent_dim == 24
    accelerator.save_model(mlp, str(tmp_path / "weights"))
    assert (tmp_path / "weights" / "model.safetensors").stat().st_size < 4 * 24 + 500


def test_mixed_precision_and_accumulation() -> None:
    """With bf16 and accumulated batches it trains, gives float32 outputs, and is itself again when unwrapped."""
    model = MappingModel(targets.conv_norm(), 24)
    mlp = MappingModel(targets.mlp(), 24)
    accelerator = accelerator_of(mixed_precision="bf16", gradient_accumulation_steps=3)
    losses = loop(accelerator, mlp, epochs=8)
    assert losses[-1] < losses[0]
    assert mlp.latent.dtype == torch.float32
    prepared = accelerator.prepare(model)
    x = torch.randn(4, 1, 6, 6, generator=torch.Generator().manual_seed(0))
    assert prepared(x).dtype == torch.float32
    plain = accelerator.unwrap_model(prepared, keep_fp32_wrapper=False).eval()
    assert torch.equal(plain(x), plain.export()(x))
