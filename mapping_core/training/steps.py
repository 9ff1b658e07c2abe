"""One forward pass of a model, as a loss sees it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from mapping_core.errors import DataError
from mapping_core.interfaces.loss import LossStep
from mapping_core.model import MappingModel
from mapping_core.target.wrappers import unwrapped
from mapping_core.training.batches import checked


def forward_step(model: nn.Module, forward: Callable[..., Any], batch: Any) -> LossStep:
    """Run `forward`, which is `model` in its precision, on what a batch adapter returned."""
    batch = checked(batch)
    plain = unwrapped(model)

    def evaluate(latents: Mapping[str, Tensor]) -> Any:
        if not isinstance(plain, MappingModel):
            raise DataError("this model has no latents to evaluate it under")
        return plain.target.run(plain.generate_weights(latents), batch.args, batch.kwargs, track=False)

    return LossStep(
        predictions=forward(*batch.args, **batch.kwargs),
        targets=batch.targets,
        latents=plain.latents if isinstance(plain, MappingModel) else {},
        evaluate=evaluate,
    )
