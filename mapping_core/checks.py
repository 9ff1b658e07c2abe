"""What a mapped model is held to before anything is built: its seed, its budget, its strategy's contract."""

from __future__ import annotations

from numbers import Integral
from typing import TYPE_CHECKING

from mapping_core.errors import BudgetError, ConfigError, PluginError

if TYPE_CHECKING:
    from mapping_core.interfaces.generator import Generator
    from mapping_core.target.layout import Layout


def checked_seed(seed: int) -> int:
    """The seed, if it is an integer of 64 bits without sign."""
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**64:
        raise ConfigError(f"must be an integer in [0, 2**64), got {seed!r}", path="seed")
    return seed


def latent_budget(latent_dim: int, layout: Layout) -> int:
    """What of `latent_dim` is left for latents after what trains directly; at least 1, at most the mapped weights."""
    if isinstance(latent_dim, bool) or not isinstance(latent_dim, Integral) or latent_dim < 1:
        raise BudgetError(f"latent_dim must be an integer of at least 1, got {latent_dim!r}")
    trained = sum(spec.numel for spec in layout.trained)
    if trained >= latent_dim:
        raise BudgetError(
            f"latent_dim={latent_dim:,} counts what trains directly too, and that is {trained:,} numbers already: "
            "raise latent_dim above it, or train less directly"
        )
    weights = sum(spec.numel for spec in layout.mapped)
    if latent_dim - trained > weights:
        raise BudgetError(
            f"latent_dim={latent_dim:,} is more than the target's {weights:,} mapped weights"
            + (f" and {trained:,} directly trained ones" if trained else "")
            + f": a latent as large as the weights saves nothing, use latent_dim <= {weights + trained:,}"
        )
    return int(latent_dim) - trained


def check_inner_budget(latent_dim: int, layout: Layout, *, name: str) -> None:
    """Refuse more latent numbers than there are numbers to generate by a strategy inside another."""
    numbers = sum(spec.numel for spec in layout.mapped)
    if not 1 <= latent_dim <= numbers:
        raise BudgetError(
            f"latent_dim={latent_dim:,} does not fit the inner strategy ({name}), which has {numbers:,} numbers to "
            f"generate: use 1 <= latent_dim <= {numbers:,}"
        )


def check_generator(generator: Generator, *, name: str, layout: Layout, budget: int) -> None:
    """Hold a strategy to its contract: the budget is met, nothing of its own trains, all is fed once."""
    total = sum(generator.latent_sizes.values())
    if total != budget:
        raise PluginError(f"strategy {name!r} uses {total:,} numbers instead of latent_dim={budget:,}")
    if own := [key for key, _ in generator.named_parameters()]:
        raise PluginError(f"strategy {name!r} has trainable parameters of its own ({', '.join(own)})")
    fed = sorted(key for keys in generator.assignment().values() for key in keys)
    if fed != sorted(spec.name for spec in layout.mapped):
        raise PluginError(f"strategy {name!r} must feed every mapped parameter exactly once, it feeds {fed}")
