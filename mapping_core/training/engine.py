"""The engine: lightning-fabric carries devices, precision and processes; this is our use of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from mapping_core.errors import ConfigError, TargetError
from mapping_core.training.config import TrainerConfig

if TYPE_CHECKING:
    from lightning_fabric import Fabric


def make_fabric(config: TrainerConfig) -> Fabric:
    """Make and launch the Fabric that `config` describes."""
    from lightning_fabric import Fabric  # slow to import, and not needed to make a trainer
    from lightning_fabric.plugins.precision import MixedPrecision

    precision: dict[str, Any] = {"precision": config.precision}
    if config.precision == "16-mixed" and config.accelerator == "cpu":
        # Fabric would take bfloat16 instead; torch has float16 and a scaler on the CPU too.
        precision = {"plugins": MixedPrecision("16-mixed", "cpu")}
    devices, machines = _processes(config)
    try:
        fabric = Fabric(accelerator=config.accelerator, devices=devices, num_nodes=machines, **precision)
    except (ValueError, RuntimeError) as error:
        raise ConfigError(
            f"{config.accelerator!r} with devices={config.devices} and precision={config.precision!r} cannot "
            f"be had here: {error}",
            path="accelerator",
        ) from error
    fabric.launch()
    return fabric


def _processes(config: TrainerConfig) -> tuple[int, int]:
    """How many processes a machine has, and how many machines there are: under torchrun, what it was told.

    Fabric would train alone in each of its processes where it was not told of the others.
    """
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return config.devices, 1
    here, everywhere = int(os.environ["LOCAL_WORLD_SIZE"]), int(os.environ["WORLD_SIZE"])
    if config.devices not in (1, here):
        raise ConfigError(
            f"is {config.devices}, but torchrun started {here} processes on this machine: leave it out", path="devices"
        )
    return here, everywhere // here


def check_strategy(fabric: Fabric) -> None:
    """Refuse strategies that wrap or shard a model: gradients are reduced here, and are small."""
    from lightning_fabric.strategies.ddp import DDPStrategy
    from lightning_fabric.strategies.single_device import SingleDeviceStrategy

    if not isinstance(fabric.strategy, SingleDeviceStrategy | DDPStrategy):
        raise ConfigError(
            f"the Fabric's strategy is {type(fabric.strategy).__name__}; this trainer runs on one device and "
            "under 'ddp': for another strategy write the loop with Fabric, where a MappingModel is a module as any",
            path="fabric",
        )


def loader_length(loader: Iterable[Any]) -> int | None:
    """How many batches a loader says it has; None when it does not say."""
    try:
        return len(loader)  # type: ignore[arg-type]
    except TypeError:
        return None


def place(fabric: Fabric, module: nn.Module) -> None:
    """Move a module to the device and into the precision; on several ranks, to what the first one trains.

    Only what trains or is tracked travels; that the rest is the same everywhere is checked.
    """
    from mapping_core.training.distributed import check_ranks_agree

    fabric.strategy.precision.convert_module(module)
    fabric.to_device(module)
    if fabric.world_size == 1:
        return
    check_ranks_agree(module)
    frozen = [name for name, parameter in module.named_parameters() if not parameter.requires_grad]
    state = module.state_dict(keep_vars=True)
    for name, tensor in state.items():
        if isinstance(tensor, Tensor) and name not in frozen:
            torch.distributed.broadcast(tensor.detach(), src=0)


def placed(fabric: Fabric, batch: Any) -> Any:
    """A batch on the device: as it is where its tensors are there already, which Fabric takes much longer to find."""
    device = fabric.device
    if type(batch) in (tuple, list) and all(type(each) is Tensor and each.device == device for each in batch):
        return batch
    return fabric.to_device(batch)


def forward_of(fabric: Fabric, module: nn.Module) -> Callable[..., Any]:
    """`module`'s forward pass in Fabric's precision, inputs and outputs converted as Fabric does; float64 ones stay."""
    precision = fabric.strategy.precision
    if precision.precision == "32-true":  # which converts nothing
        return module

    def forward(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = precision.convert_input((args, kwargs))
        with precision.forward_context():
            output = module(*args, **kwargs)
        # Fabric would make float32 of float64 too, and the loss and its gradients with it.
        return output if precision.precision == "64-true" else precision.convert_output(output)

    return forward


def trainable_parameters(model: nn.Module, loss: nn.Module, optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """What the optimiser holds, in its order; raises `ConfigError` if something trainable is left out of it."""
    held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    ids = {id(parameter) for parameter in held}
    missing = [
        name for name, parameter in loss.named_parameters() if parameter.requires_grad and id(parameter) not in ids
    ]
    if missing:
        raise ConfigError(
            f"holds none of the loss's own parameters ({', '.join(missing)}): make it of model.parameters() and "
            "trainer.loss.parameters()",
            path="optimizer",
        )
    if not held:
        raise TargetError(f"{type(model).__name__} has no trainable parameter")
    return held


def scaler_of(fabric: Fabric) -> Any:
    """The gradient scaler of a mixed precision in float16; None for any other."""
    return getattr(fabric.strategy.precision, "scaler", None)
