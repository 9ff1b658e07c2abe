"""Strategies with several latents: one for each layer, or one for each group of the user's.

The layer-wise training of "Mapping Networks" (arXiv 2602.19134), and its generalisation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from attrs import Attribute, define, field

from mapping_core import GeneratorConfig, hookimpl

if TYPE_CHECKING:
    from mapping_core import Generator
    from mapping_core.contexts import GeneratorContext

__version__ = "0.1.0"
__all__ = ["Grouped", "Layerwise", "mapping_generators"]

RULES = ("equal", "sqrt", "proportional")

#: How `latent_dim` is divided: by a rule, or numbers by pattern (layers) or by name (groups).
Budget = Literal["equal", "sqrt", "proportional"] | dict[str, int]


def _is_budget(_: Any, attribute: Attribute[Any], value: object) -> None:
    if isinstance(value, dict):
        if not value or any(type(number) is not int or number < 1 for number in value.values()):
            raise ValueError(f"'{attribute.name}' must give at least one number, each an integer of at least 1")
    elif value not in RULES:
        raise ValueError(f"'{attribute.name}' must be one of {', '.join(RULES)}, or a table of numbers, got {value!r}")


def _are_groups(_: Any, attribute: Attribute[Any], value: object) -> None:
    if not (
        isinstance(value, dict) and value and all(isinstance(each, list | tuple) and each for each in value.values())
    ):
        raise ValueError(f"'{attribute.name}' must be a table of name = list of patterns, got {value!r}")


@define(frozen=True, kw_only=True)
class Layerwise(GeneratorConfig):
    """One latent a layer; no layer gets more numbers than it has weights, and none gets no number.

    A layer is a module that owns parameters: a weight and its bias share a latent. `budget`
    says what a layer's share follows: nothing (``"equal"``), the square root of its weights
    (``"sqrt"``), or its weights (``"proportional"``); or it is a table of pattern (over names,
    paths and class names) = numbers a layer, and the layers it does not name share the rest equally.
    """

    name = "layerwise"
    budget: Budget = field(default="equal", validator=_is_budget)

    def build(self, context: GeneratorContext) -> Generator:
        from mapping_plugin_layerwise._generator import layerwise

        return layerwise(context, self.budget)


@define(frozen=True, kw_only=True)
class Grouped(GeneratorConfig):
    """One latent for each group of parameters: `groups` is a table of name = patterns.

    A parameter belongs to the first group with a pattern (over names, paths and class names of
    owners) that matches it, and every one must belong to one. `budget` is as for `Layerwise`;
    a table of it has names of groups, and a group it does not name shares in the rest.
    """

    name = "grouped"
    groups: dict[str, tuple[str, ...]] = field(validator=_are_groups)
    budget: Budget = field(default="equal", validator=_is_budget)

    def build(self, context: GeneratorContext) -> Generator:
        from mapping_plugin_layerwise._generator import grouped

        return grouped(context, self.groups, self.budget)


@hookimpl
def mapping_generators() -> list[type[GeneratorConfig]]:
    return [Layerwise, Grouped]
