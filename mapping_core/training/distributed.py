"""What several processes that train one model must agree on, checked before time is spent.

DistributedDataParallel sends what trains and the tracked buffers from rank 0 to all. The base,
frozen weights and mappers are not sent, since each rank makes the same; here it is checked that it did.
"""

from __future__ import annotations

from typing import Any

from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from mapping_core import files
from mapping_core.errors import ConfigError, DataError, MappingError, TargetError
from mapping_core.model import MappingModel

_GIVEN = "base_sha256"  # the recipe's entry for what was given and does not train


def check_ranks_agree(model: nn.Module, *, batches: int | None = None) -> None:
    """Refuse mapped models, `model` or inside it, that are not made alike on all ranks.

    Compares their recipes (components and settings, latent_dim, seed, layout, a hash of the base), and the number
    of `batches` in an epoch where it is known: a rank that has more waits for the others for ever. Every rank
    must call it, before the model is wrapped for distributed training; without several ranks it does nothing.

    Raises `TargetError` for other base weights, `ConfigError` for other settings, `DataError` for other lengths,
    on every rank.

    >>> check_ranks_agree(MappingModel(nn.Linear(2, 3), latent_dim=4))
    """
    if not (distributed.is_available() and distributed.is_initialized()) or distributed.get_world_size() == 1:
        return
    facts = _facts(model)
    gathered: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(gathered, (facts, batches))
    first, first_batches = gathered[0]
    for rank, (other, other_batches) in enumerate(gathered[1:], start=1):
        if other_batches != first_batches:
            raise DataError(
                f"rank 0 has {first_batches} batches an epoch and rank {rank} {other_batches}: give all ranks the same "
                "number (a DistributedSampler does; drop what is over), or the one with more waits for ever"
            )
        # In the recipe's order: what was asked for before what it led to.
        for name in {**first, **other}:
            if first.get(name) != other.get(name):
                raise _difference(name, rank, first.get(name), other.get(name))


def check_all_used(module: nn.Module) -> None:
    """After a run's first backward pass: refuse parameters that DistributedDataParallel waits for in vain.

    It reduces gradients when all have come, so one parameter outside the loss leaves every gradient unreduced, and
    the next pass fails with a number in place of a name. Generated weights cannot cause it, since their one
    latent is used if any of them is; parameters that train directly can.

    Raises `TargetError` with their names. Does nothing without DistributedDataParallel, or if that
    looks for unused parameters itself.
    """
    for wrapper in module.modules():
        if not isinstance(wrapper, DistributedDataParallel) or wrapper.find_unused_parameters or wrapper.static_graph:
            continue
        parameters = wrapper.module.named_parameters()
        unused = [name for name, each in parameters if each.requires_grad and each.grad is None]
        if unused:
            names = ", ".join(repr(name.rpartition("target.trained.")[2]) for name in unused)
            raise TargetError(
                f"{names} train, but the loss does not depend on them, and DistributedDataParallel waits for their "
                "gradients: take them out of `trained`, or use the strategy 'ddp_find_unused_parameters_true'"
            )


def _facts(model: nn.Module) -> dict[tuple[str, str], Any]:
    """The recipes' entries, by the path of the mapped model and the entry's name."""
    mapped = {path: module for path, module in model.named_modules() if isinstance(module, MappingModel)}
    return {(path, key): value for path, module in mapped.items() for key, value in files.recipe_for(module).items()}


def _difference(name: tuple[str, str], rank: int, first: Any, other: Any) -> MappingError:
    path, key = name
    place = f" of {path!r}" if path else ""
    if key == _GIVEN:
        return TargetError(
            f"the target{place} has other weights on rank {rank} than on rank 0, and only what trains is sent between "
            "ranks: seed torch before the target is built, or load the same weights, on every rank"
        )
    return ConfigError(
        f"{key}{place} is {first} on rank 0 and {other} on rank {rank}: build the model alike on every rank", path=key
    )
