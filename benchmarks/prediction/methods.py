"""The methods: what is done beside Adam's steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from attrs import define, field
from torch import Tensor, nn

from mapping_core import Callback, MappingTrainer

#: Jumps are watched as in an ordinary run, but on few samples and for one horizon: with the guard's defaults
#: (1,024 samples, four horizons) its share of 5 % of the compute is one attempt in 448 steps.
JUMPS = {"type": "fixed", "warmup": 40, "full": 20, "correct": 10, "horizons": [20]}
GUARD = {"samples": 256}


@define(frozen=True, kw_only=True)
class Method:
    """Options of the trainer, and callbacks made anew for each run; `averaged` measures the moving average.

    `tuned_as` names the method whose rate is taken: placebos have that of what they stand in for.
    """

    schedule: str = "constant"
    options: dict[str, Any] = field(factory=dict)
    callbacks: Callable[[], list[Callback]] = list
    averaged: bool = False
    tuned_as: str = ""


class Lookahead(Callback):
    """Every `k` steps, slow weights move by `alpha` to the fast ones, which go there; Adam's moments stay.

    Zhang, Lucas, Hinton and Ba, NeurIPS 2019 (arXiv 1907.08610).
    """

    def __init__(self, k: int = 5, alpha: float = 0.5) -> None:
        self.k, self.alpha = k, alpha
        self.slow: list[Tensor] = []

    def on_fit_start(self, trainer: MappingTrainer) -> None:
        self.slow = [each.detach().clone() for each in _trained(trainer.model)]

    @torch.no_grad()
    def on_batch_end(self, trainer: MappingTrainer, record: Any) -> None:
        if record.step % self.k == 0:
            fast = [each.detach() for each in _trained(trainer.model)]
            torch._foreach_lerp_(self.slow, fast, self.alpha)
            torch._foreach_copy_(fast, self.slow)


class Average(Callback):
    """The exponential moving average of what trains, for the measurements."""

    def __init__(self, decay: float = 0.98) -> None:
        self.decay = decay
        self.average: list[Tensor] = []

    def on_fit_start(self, trainer: MappingTrainer) -> None:
        self.average = [each.detach().clone() for each in _trained(trainer.model)]

    @torch.no_grad()
    def on_batch_end(self, trainer: MappingTrainer, record: Any) -> None:
        # A short memory at the start, as torch's and others' averages of models have.
        decay = min(self.decay, (1 + record.step) / (10 + record.step))
        torch._foreach_lerp_(self.average, [each.detach() for each in _trained(trainer.model)], 1 - decay)

    @torch.no_grad()
    def lend(self, model: nn.Module) -> Callable[[], None]:
        """Give the model the average; what is returned gives back what it had."""
        trained = [each.detach() for each in _trained(model)]
        kept = [each.clone() for each in trained]
        torch._foreach_copy_(trained, self.average)
        return lambda: torch._foreach_copy_(trained, kept)


def _trained(model: nn.Module) -> list[nn.Parameter]:
    return [each for each in model.parameters() if each.requires_grad]


def _jumps(dynamics: str, rate_factor: float = 1.0, tuned_as: str = "") -> Method:
    prediction = {"policy": JUMPS, "dynamics": dynamics, "guard": GUARD, "rate_factor": rate_factor}
    return Method(options={"prediction": prediction}, tuned_as=tuned_as)


METHODS: dict[str, Method] = {
    "constant": Method(),
    "cosine": Method(schedule="cosine"),
    "lookahead": Method(callbacks=lambda: [Lookahead()]),
    "ema": Method(callbacks=lambda: [Average()], averaged=True),
    "sampled": Method(options={"prediction": {"policy": {"type": "sampled"}}}),
    "sampled-always": Method(
        options={"prediction": {"policy": {"type": "sampled", "margin": 1e-9}}}, tuned_as="sampled"
    ),
    "jumps": _jumps("linear"),
    "jumps-signal": _jumps("linear", rate_factor=2.0, tuned_as="constant"),
    "jumps-signal-4": _jumps("linear", rate_factor=4.0, tuned_as="constant"),
    "random": _jumps("random", tuned_as="jumps"),
    "random-signal-4": _jumps("random", rate_factor=4.0, tuned_as="constant"),
    "none": _jumps("none", tuned_as="constant"),
}
