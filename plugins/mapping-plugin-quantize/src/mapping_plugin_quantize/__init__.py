"""Quantised latents: trained on a grid of few levels, and stored as packed codes.

Many coarse numbers say more than few fine ones of the same bytes. Learned step sizes after "Learned
Step Size Quantization" (Esser et al., ICLR 2020, arXiv 1902.08153).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Literal

from attrs import Attribute, define, field
from attrs.validators import and_, ge, in_, le, optional

from mapping_core import CallbackConfig, GeneratorConfig, hookimpl

if TYPE_CHECKING:
    from mapping_core import Callback, Generator
    from mapping_core.contexts import CallbackContext, GeneratorContext
    from mapping_plugin_quantize._quantize import quantize

__version__ = "0.1.0"
__all__ = ["Quantized", "Quantizing", "mapping_callbacks", "mapping_generators", "quantize"]

GROUPS = ("all", "latent")
MOST_BITS = 8


def _are_bits(_: Any, attribute: Attribute[Any], value: object) -> None:
    numbers = list(value.values()) if isinstance(value, dict) else [value]
    if not numbers or any(type(number) is not int or not 1 <= number <= MOST_BITS for number in numbers):
        raise ValueError(
            f"'{attribute.name}' must be an integer from 1 to {MOST_BITS}, or a table of pattern = bits, got {value!r}"
        )


@define(frozen=True, kw_only=True)
class Quantized(GeneratorConfig):
    """The latents of `strategy` (None: one latent) on a grid of 2^bits levels, once that has begun.

    Until the callback `Quantizing` or `quantize` begins it, the inner strategy's weights are
    unchanged. From then on each number is `step * level`, the level an integer of `bits` bits, or
    -1/2 and 1/2 for 1 bit. There is a step for each latent, or one for all of them
    (``groups="all"``); `bits` may be a table of pattern = bits over the latents' names, of
    which each takes the first that matches.

    Steps are trained, so they count: the inner strategy gets `latent_dim` less the number of groups.
    Files hold the levels, entropy-coded, in the latents' place.
    """

    name = "quantized"
    strategy: GeneratorConfig | str | None = None
    bits: int | dict[str, int] = field(default=4, validator=_are_bits)
    groups: Literal["all", "latent"] = field(default="latent", validator=in_(GROUPS))

    def __attrs_post_init__(self) -> None:
        if isinstance(self.bits, dict) and self.groups == "all":
            raise ValueError("a table of 'bits' is by latent, and groups='all' has one grid: leave one of them out")

    def build(self, context: GeneratorContext) -> Generator:
        from mapping_plugin_quantize._generator import QuantizedGenerator

        return QuantizedGenerator(context, self)


@define(frozen=True, kw_only=True)
class Quantizing(CallbackConfig):
    """Quantises the latents of `Quantized` from the part `begin` of a run on, and trains their steps.

    With `end`, the bits fall one at a time, from 8 at `begin` to the strategy's own at `end`.
    A step starts at 2 mean|z| / sqrt(Q), Q the largest level.
    """

    name = "quantize"
    begin: float = field(default=0.3, validator=and_(ge(0.0), le(1.0)))
    end: float | None = field(default=None, validator=optional(and_(ge(0.0), le(1.0))))

    def __attrs_post_init__(self) -> None:
        if self.end is not None and self.end < self.begin:
            raise ValueError(f"'end' must not be before 'begin', got {self.begin} and {self.end}")

    def build(self, context: CallbackContext) -> Callback:
        from mapping_plugin_quantize._callback import QuantizeCallback

        return QuantizeCallback(self)


@hookimpl
def mapping_generators() -> list[type[GeneratorConfig]]:
    return [Quantized]


@hookimpl
def mapping_callbacks() -> list[type[CallbackConfig]]:
    return [Quantizing]


_LAZY = {"quantize": "mapping_plugin_quantize._quantize"}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)
