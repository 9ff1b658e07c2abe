"""The engine: lightning-fabric carries devices, precision and distribution; this is our use of it."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Self

import numpy
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

from mapping_core.errors import ConfigError
from mapping_core.training.config import TrainerConfig

if TYPE_CHECKING:
    from lightning_fabric import Fabric


def seed_everything(seed: int | None) -> None:
    """Seed Python's, NumPy's and torch's generators; None leaves them as they are."""
    if seed is not None:
        random.seed(seed)
        numpy.random.seed(seed % 2**32)
        torch.manual_seed(seed)


def loader_length(loader: Iterable[Any]) -> int | None:
    """How many batches a loader says it has; None when it does not say."""
    try:
        return len(loader)  # type: ignore[arg-type]
    except TypeError:
        return None


class Engine:
    """One model and its optimiser, set up on Fabric's device."""

    def __init__(
        self, fabric: Fabric, module: nn.Module, optimizer: Any = None, scheduler: LRScheduler | None = None
    ) -> None:
        self.fabric = fabric
        self.module = module
        self._optimizer = optimizer
        self._scheduler = scheduler
        self._loaders: dict[int, Iterable[Any]] = {}
        #: The rate of the last optimiser step; before the first, of the first.
        self.last_learning_rate = 0.0 if optimizer is None else float(optimizer.param_groups[0]["lr"])

    @classmethod
    def start(
        cls,
        config: TrainerConfig,
        fabric: Fabric | None,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | None = None,
        scheduler: LRScheduler | None = None,
    ) -> Self:
        """Launch Fabric (the given one, or one made from `config`) and set up model and optimiser."""
        if fabric is None:
            from lightning_fabric import Fabric  # slow to import, and not needed to make a trainer

            try:
                fabric = Fabric(
                    accelerator=config.accelerator,
                    devices=config.devices,
                    precision=config.precision,  # type: ignore[arg-type]
                )
            except (ValueError, RuntimeError) as error:
                raise ConfigError(
                    f"{config.accelerator!r} with devices={config.devices} and precision={config.precision!r} cannot "
                    f"be had here: {error}",
                    path="accelerator",
                ) from error
            fabric.launch()
        if optimizer is None:
            return cls(fabric, fabric.setup_module(model))
        module, wrapped = fabric.setup(model, optimizer)
        return cls(fabric, module, wrapped, scheduler)

    def batches(self, loader: Iterable[Any], epoch: int) -> Iterator[Any]:
        """The loader's batches, on the device, in the order that its sampler has in this epoch."""
        if not isinstance(loader, DataLoader):
            yield from (self.fabric.to_device(batch) for batch in loader)
            return
        if id(loader) not in self._loaders:
            self._loaders[id(loader)] = self.fabric.setup_dataloaders(loader)
        prepared: Any = self._loaders[id(loader)]
        # Fabric calls the sampler's `set_epoch` with a count of its own, which would begin at 0 after a restart.
        prepared._num_iter_calls = epoch
        yield from prepared

    def optimise(self, loss: Tensor) -> None:
        """Backward, one optimiser step, one scheduler step."""
        self.fabric.backward(loss)
        self.last_learning_rate = float(self._optimizer.param_groups[0]["lr"])
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        if self._scheduler is not None:
            self._scheduler.step()
