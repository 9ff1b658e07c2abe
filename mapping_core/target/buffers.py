"""The buffer policy: what happens to BatchNorm statistics and other buffers of the target.

`functional_call` in training mode writes the running statistics of the module it executes.
Here it never gets the user's buffers, only private copies, and a policy says which of
these may change:

``"frozen"``
    Buffers keep the values the target came with. Statistics that carry an estimate are used
    in training as well (those modules stay in evaluation mode), so training and evaluation
    see the same function. Statistics that were *never* estimated, as in a fresh network,
    hold nothing to keep: they are tracked, or evaluation would be wrong.
``"tracked"``
    Every persistent buffer may change, as in ordinary training.
``"batch"``
    Running statistics are dropped: norms use the batch at hand, in evaluation too, so nothing
    has to be tracked or saved. Outputs then depend on the batch; not for batches of one.

Whatever the policy, buffers that are not persistent are the module's scratch, such as a cache or a
mask that grows: they change as in ordinary use, on private copies, and are not saved. And the
vectors of spectral norms are tracked: they follow the weights, which move, and with old ones the
norm would not be 1.
"""

from __future__ import annotations

from attrs import define
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.nn.utils.spectral_norm import SpectralNorm

from mapping_core.errors import ConfigError, TargetError

POLICIES = ("frozen", "tracked", "batch")


@define(frozen=True)
class BufferPlan:
    """Names of the tracked and the scratch buffers, and of the modules that stay in evaluation mode."""

    tracked: frozenset[str]
    scratch: frozenset[str]
    always_eval: frozenset[str]


def plan_buffers(target: nn.Module, policy: str) -> BufferPlan:
    """Apply a policy to a target.

    >>> plan_buffers(nn.BatchNorm1d(3), "frozen").always_eval     # fresh: nothing to freeze
    frozenset()
    """
    if policy not in POLICIES:
        raise ConfigError(f"{policy!r} is not one of {', '.join(POLICIES)}", path="buffers")
    buffers = {name for name, _ in target.named_buffers()}
    persistent = buffers & target.state_dict(keep_vars=True).keys()
    statistics = {
        f"{path}.{leaf}" if path else leaf for path, module in target.named_modules() for leaf in statistics_of(module)
    }
    scratch = frozenset(buffers - persistent - statistics)
    if policy == "tracked":
        return BufferPlan(frozenset(persistent), scratch, frozenset())
    tracked = _spectral_vectors(target)
    if policy == "batch":
        _refuse_other_norms(target)
        return BufferPlan(frozenset(tracked), scratch - tracked, frozenset())
    always_eval: set[str] = set()
    for path, module in target.named_modules():
        own = statistics_of(module)
        if not own:
            continue
        if _estimated(module):
            always_eval.add(path)
        else:
            tracked |= {f"{path}.{leaf}" if path else leaf for leaf in own}
    return BufferPlan(frozenset(tracked), scratch - tracked, frozenset(always_eval))


def _spectral_vectors(target: nn.Module) -> set[str]:
    """The buffers in which spectral norms, of the new kind or the old, iterate towards the largest singular value."""
    found: set[str] = set()
    for path, module in target.named_modules():
        leaves = ["_u", "_v"] if isinstance(module, parametrizations._SpectralNorm) else []
        for hook in module._forward_pre_hooks.values():
            if isinstance(hook, SpectralNorm):
                leaves += [f"{hook.name}_u", f"{hook.name}_v"]
        found |= {f"{path}.{leaf}" if path else leaf for leaf in leaves if leaf in module._buffers}
    return found


def _refuse_other_norms(target: nn.Module) -> None:
    for path, module in target.named_modules():
        if statistics_of(module) and not isinstance(module, nn.modules.batchnorm._NormBase):
            raise TargetError(
                f"buffers='batch' cannot make {type(module).__name__} {path!r} use the batch at hand: it keeps running "
                "statistics but is no norm of torch; use buffers='tracked'"
            )


def use_batch_statistics(skeleton: nn.Module) -> None:
    """Make norms forget their running statistics; in place, so only for a skeleton of our own."""
    for module in skeleton.modules():
        if isinstance(module, nn.modules.batchnorm._NormBase):
            for leaf in statistics_of(module):
                module.register_buffer(leaf, None)
            module.track_running_stats = False


def statistics_of(module: nn.Module) -> dict[str, Tensor]:
    """The running statistics of a batch or instance norm (or of any module that keeps them alike), by leaf name."""
    leaves = ("running_mean", "running_var", "num_batches_tracked")
    found = {leaf: module._buffers.get(leaf) for leaf in leaves}
    if found["running_mean"] is None or found["running_var"] is None:
        return {}
    return {leaf: tensor for leaf, tensor in found.items() if tensor is not None}


def _estimated(module: nn.Module) -> bool:
    statistics = statistics_of(module)
    counter = statistics.get("num_batches_tracked")
    if counter is not None and int(counter) > 0:
        return True
    # Loaded from a file without the counter: anything but the initial 0 and 1 is an estimate.
    return bool((statistics["running_mean"] != 0).any() or (statistics["running_var"] != 1).any())
