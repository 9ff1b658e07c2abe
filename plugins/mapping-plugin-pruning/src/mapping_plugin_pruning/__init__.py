"""Pruning: masks on generated weights, the schedule that sets them, and smaller layers at the end.

The add-on "prune" of "Mapping Networks" (arXiv 2602.19134), with the usual criteria and schedules.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Literal

from attrs import define, field
from attrs.validators import and_, deep_iterable, ge, gt, in_, instance_of, le, optional

from mapping_core import CallbackConfig, GeneratorConfig, hookimpl

if TYPE_CHECKING:
    from mapping_core import Callback, Generator
    from mapping_core.contexts import CallbackContext, GeneratorContext
    from mapping_plugin_pruning._prune import kept, prune
    from mapping_plugin_pruning._shrink import shrink

__version__ = "0.1.0"
__all__ = ["Pruned", "Pruning", "kept", "mapping_callbacks", "mapping_generators", "prune", "shrink"]

METHODS = ("magnitude", "channels", "n_m")
SCOPES = ("global", "tensor")
SCHEDULES = ("one_shot", "gradual", "iterative")


@define(frozen=True, kw_only=True)
class Pruned(GeneratorConfig):
    """Masks on the weights that `strategy` generates (base and mapping together); all pass at the start.

    What is pruned, and by what: single weights of the smallest magnitude (``"magnitude"``);
    output channels of the smallest norm, with their bias and the norm layer behind them
    (``"channels"``); or of every `m` weights of a row the smallest (``"n_m"``). `scope` says whether all
    tensors are ranked together or each keeps the same part. `layers` are patterns of what may be
    pruned; without it, everything that a layer does not initialise to a constant, and for
    channels all layers but the last.

    The masks are set by the callback `Pruning`, or by `prune`; they are kept and saved as bits.
    """

    name = "pruned"
    strategy: GeneratorConfig | str | None = None
    method: Literal["magnitude", "channels", "n_m"] = field(default="magnitude", validator=in_(METHODS))
    scope: Literal["global", "tensor"] = field(default="global", validator=in_(SCOPES))
    m: int = field(default=4, validator=and_(instance_of(int), ge(2)))
    layers: tuple[str, ...] | None = field(
        default=None, validator=optional(deep_iterable(instance_of(str), instance_of(tuple)))
    )

    def build(self, context: GeneratorContext) -> Generator:
        from mapping_plugin_pruning._generator import PrunedGenerator

        return PrunedGenerator(context, self)


def _fraction(default: float) -> Any:
    return field(default=default, validator=and_(ge(0.0), le(1.0)))


@define(frozen=True, kw_only=True)
class Pruning(CallbackConfig):
    """Sets the masks of `Pruned` while training, until the part `keep` of what may be pruned is left.

    ``"one_shot"`` prunes at once at `begin`. ``"gradual"`` prunes every `every` steps from `begin` to `end` along the
    cubic of Zhu and Gupta ("To prune, or not to prune", 2017). ``"iterative"`` prunes in `rounds` equal ratios
    between `begin` and `end`; with `rewind`, what trains goes back each time to where it was then, and the
    optimiser starts anew (Frankle et al., "Linear mode connectivity and the lottery ticket
    hypothesis", 2020). `begin`, `end` and `rewind` are parts of the run.
    """

    name = "pruning"
    keep: float = field(default=0.1, validator=and_(gt(0.0), le(1.0)))
    schedule: Literal["one_shot", "gradual", "iterative"] = field(default="gradual", validator=in_(SCHEDULES))
    begin: float = _fraction(0.1)
    end: float = _fraction(0.6)
    every: int = field(default=20, validator=and_(instance_of(int), ge(1)))
    rounds: int = field(default=4, validator=and_(instance_of(int), ge(1)))
    rewind: float | None = field(default=None, validator=optional(and_(ge(0.0), le(1.0))))

    def __attrs_post_init__(self) -> None:
        if self.end < self.begin:
            raise ValueError(f"'end' must not be before 'begin', got {self.begin} and {self.end}")
        if self.rewind is not None and self.schedule != "iterative":
            raise ValueError("'rewind' is for schedule 'iterative'")
        if self.rewind is not None and self.rewind > self.begin:
            raise ValueError(f"'rewind' must not be after 'begin', got {self.rewind} and {self.begin}")

    def build(self, context: CallbackContext) -> Callback:
        from mapping_plugin_pruning._callback import PruningCallback

        return PruningCallback(self)


@hookimpl
def mapping_generators() -> list[type[GeneratorConfig]]:
    return [Pruned]


@hookimpl
def mapping_callbacks() -> list[type[CallbackConfig]]:
    return [Pruning]


_LAZY = {
    "kept": "mapping_plugin_pruning._prune",
    "prune": "mapping_plugin_pruning._prune",
    "shrink": "mapping_plugin_pruning._shrink",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)
