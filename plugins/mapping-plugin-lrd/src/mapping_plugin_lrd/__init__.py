"""Low-rank decomposition: weights are products of two thin matrices, and these are generated.

The add-on "LRD" of "Mapping Networks" (arXiv 2602.19134), and `factorize` for its direct
training baseline.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from attrs import Attribute, define, field
from attrs.validators import deep_iterable, instance_of, optional

from mapping_core import GeneratorConfig, hookimpl

if TYPE_CHECKING:
    from mapping_core import Generator
    from mapping_core.contexts import GeneratorContext
    from mapping_plugin_lrd._factorize import factorize
    from mapping_plugin_lrd._thin import export_thin

__version__ = "0.1.0"
__all__ = ["Lrd", "export_thin", "factorize", "mapping_generators"]


def _positive(_: Any, attribute: Attribute[Any], value: object) -> None:
    ranks = list(value.values()) if isinstance(value, dict) else [value]
    if not ranks or any(isinstance(rank, bool) or not isinstance(rank, int) or rank < 1 for rank in ranks):
        raise ValueError(f"'{attribute.name}' must be an integer of at least 1, or a table of pattern = rank")


@define(frozen=True, kw_only=True)
class Lrd(GeneratorConfig):
    """Each chosen weight, as a matrix [m, n], is theta_0 + U V with U [m, rank] and V [rank, n] generated.

    A convolution's kernel counts as [out, in * kernel]. `rank` is one for all, or a table of
    pattern (over parameter names, module paths and class names of owners) = rank, of which the
    first that matches holds. `layers` are patterns that choose weights; without it, those that
    `rank` names, and for a rank for all every weight that two factors are smaller than.

    `strategy` divides the latent among factors and the parameters that stay whole; by default
    one latent feeds all.

    V starts at a seeded draw and U at 0, so that a model starts as its base and yet learns.
    With ``base="zero"`` both are generated, U V alone is the weight, as in the paper, and the
    latent starts at random. Either way U V has the standard deviation that the layer's own
    initialisation gives, for a latent with standard deviation 1.
    """

    name = "lrd"
    rank: int | dict[str, int] = field(default=8, validator=_positive)
    layers: tuple[str, ...] | None = field(
        default=None, validator=optional(deep_iterable(instance_of(str), instance_of(tuple)))
    )
    strategy: GeneratorConfig | str | None = None

    def build(self, context: GeneratorContext) -> Generator:
        from mapping_plugin_lrd._generator import LrdGenerator

        return LrdGenerator(context, self)


@hookimpl
def mapping_generators() -> list[type[GeneratorConfig]]:
    return [Lrd]


_LAZY = {"export_thin": "mapping_plugin_lrd._thin", "factorize": "mapping_plugin_lrd._factorize"}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)
