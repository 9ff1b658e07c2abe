"""Magnitude pruning of a network that is trained directly, by torch's own masks: what mapped ones are compared with."""

from __future__ import annotations

from torch import nn
from torch.nn.utils import prune

from mapping_core import Callback, MappingTrainer
from mapping_core.training.history import StepRecord


class DirectPruning(Callback):
    """Prunes the smallest numbers of all layers together, in four equal ratios over the first half of the run.

    Weights and biases count alike: a tenth of CNN2's 108,618 is 10,862.
    """

    def __init__(self, keep: float) -> None:
        self.keep = keep

    def on_batch_end(self, trainer: MappingTrainer, record: StepRecord) -> None:
        assert trainer.total_steps is not None
        moments = [round(trainer.total_steps * part) for part in (0.125, 0.25, 0.375, 0.5)]
        if not record.stepped or record.step not in moments:
            return
        numbers = [
            (layer, name)
            for layer in trainer.model.modules()
            if isinstance(layer, nn.Conv2d | nn.Linear)
            for name in ("weight", "bias")
        ]
        total = sum(getattr(layer, name).numel() for layer, name in numbers)
        left = [round(total * self.keep ** (rounds / 4)) for rounds in range(5)]
        done = moments.index(record.step)
        prune.global_unstructured(numbers, prune.L1Unstructured, amount=left[done] - left[done + 1])


def make_permanent(model: nn.Module) -> None:
    """Put the zeros into the parameters, and take the masks away."""
    for module in model.modules():
        for name in [name for name, _ in module.named_buffers(recurse=False) if name.endswith("_mask")]:
            prune.remove(module, name.removesuffix("_mask"))  # type: ignore[no-untyped-call]
