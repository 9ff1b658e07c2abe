"""The exponential moving average of what trains."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from mapping_core.interfaces.callback import Callback
from mapping_core.training.checkpoint import write_model

if TYPE_CHECKING:
    from mapping_core.training.history import StepRecord
    from mapping_core.training.trainer import MappingTrainer

AVERAGED = "averaged.safetensors"


class EmaCallback(Callback):
    """Follows the trainable parameters; lends the model their average for each validation."""

    def __init__(self, decay: float) -> None:
        self._decay = decay
        # Holds what trains and nothing else: `AveragedModel` copies what it is given, and a base may be large.
        self._trained = nn.ParameterList()
        self._average: AveragedModel | None = None
        self._kept: list[Tensor] = []  # the trained numbers, while the model has the averaged ones

    @property
    def state_key(self) -> str:
        return "Ema"

    def state_dict(self) -> dict[str, Any]:
        if self._average is None:
            return {"steps": 0, "averages": []}
        averages = [parameter.detach().clone() for parameter in self._average.module.parameters()]
        return {"steps": int(self._average.n_averaged), "averages": averages}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert self._average is not None  # made in on_fit_start, which comes before
        self._average.n_averaged.fill_(state["steps"])
        _copy(state["averages"], self._average.module.parameters())

    def on_fit_start(self, trainer: MappingTrainer) -> None:
        self._trained = nn.ParameterList(each for each in trainer.model.parameters() if each.requires_grad)
        self._average = AveragedModel(self._trained, multi_avg_fn=get_ema_multi_avg_fn(self._decay))  # type: ignore[no-untyped-call]
        self._kept = []

    def on_batch_end(self, trainer: MappingTrainer, record: StepRecord) -> None:
        if record.stepped and self._average is not None:
            self._average.update_parameters(self._trained)

    def on_validation_start(self, trainer: MappingTrainer) -> None:
        self._lend()

    def on_validation_end(self, trainer: MappingTrainer, metrics: dict[str, float]) -> None:
        self._take_back()

    def on_checkpoint(self, trainer: MappingTrainer, path: Path) -> None:
        if trainer.is_first_rank:
            with self._lent():
                write_model(path / AVERAGED, trainer.model)

    def on_fit_end(self, trainer: MappingTrainer) -> None:
        self._lend()
        self._kept = []

    def on_exception(self, trainer: MappingTrainer, error: BaseException) -> None:
        self._take_back()

    @contextmanager
    def _lent(self) -> Iterator[None]:
        self._lend()
        try:
            yield
        finally:
            self._take_back()

    def _lend(self) -> None:
        if self._average is not None and self._average.n_averaged:
            self._kept = [parameter.detach().clone() for parameter in self._trained]
            _copy(self._average.module.parameters(), self._trained)

    def _take_back(self) -> None:
        if self._kept:
            _copy(self._kept, self._trained)
            self._kept = []


@torch.no_grad()
def _copy(sources: Iterable[Tensor], destinations: Iterable[Tensor]) -> None:
    for source, destination in zip(sources, destinations, strict=True):
        destination.copy_(source)
