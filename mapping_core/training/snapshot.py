"""All that a step can change: kept, and put back bit for bit."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch
from attrs import asdict, define
from torch import Tensor, nn

from mapping_core.training.randomness import random_state, set_random_state

if TYPE_CHECKING:
    from mapping_core.training.loop import Loop


@define(kw_only=True)
class Snapshot:
    """Copies of a run's latent or weights, buffers, optimiser, scheduler, scaler, generators, callbacks and predictor.

    What it does not hold is the place in the data: a run that goes back goes on with the next batch.
    """

    step: int
    numbers: list[Tensor]
    training: dict[str, Any]
    callbacks: dict[str, Any]
    random: dict[str, Any]
    rate_factor: float
    memory: dict[str, Any] | None

    @classmethod
    def of(cls, loop: Loop) -> Snapshot:
        """Take one."""
        trainer = loop.trainer
        return cls(
            step=trainer.step,
            numbers=[each.detach().clone() for each in _numbers(loop)],
            training=copy.deepcopy(loop.training_state()),
            callbacks={each.state_key: copy.deepcopy(each.state_dict()) for each in trainer.callbacks},
            random=random_state(loop.loader),
            rate_factor=loop.rate_factor,
            memory=None if loop.predictor is None else loop.predictor.memory(),
        )

    def restore(self, loop: Loop) -> None:
        """Put everything back."""
        trainer = loop.trainer
        trainer.step = self.step
        with torch.no_grad():
            for tensor, value in zip(_numbers(loop), self.numbers, strict=True):
                tensor.copy_(value)
        loop.load_training_state(copy.deepcopy(self.training))
        for callback in trainer.callbacks:
            callback.load_state_dict(copy.deepcopy(self.callbacks[callback.state_key]))
        set_random_state(self.random, loop.loader)
        loop.rate_factor = self.rate_factor
        if loop.predictor is not None and self.memory is not None:
            loop.predictor.remember(copy.deepcopy(self.memory))

    def state_dict(self) -> dict[str, Any]:
        """Its parts, which make one again."""
        return asdict(self, recurse=False)


def _numbers(loop: Loop) -> list[Tensor]:
    return [tensor for each in (loop.trainer.model, loop.trainer.loss) for tensor in changing(each)]


def changing(module: nn.Module) -> list[Tensor]:
    """What a step can write to: all buffers, and the parameters that train."""
    state = {name: value for name, value in module.state_dict(keep_vars=True).items() if isinstance(value, Tensor)}
    tensors = [*state.values(), *module.buffers(), *module.parameters()]
    return list(
        {id(each): each for each in tensors if not isinstance(each, nn.Parameter) or each.requires_grad}.values()
    )
