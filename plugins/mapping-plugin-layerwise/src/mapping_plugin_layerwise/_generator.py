"""The generator of `layerwise` and `grouped`: several latents, each for some of the parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor, nn

from mapping_core import ConfigError, Expansion, Generator, ParameterSpec, expand
from mapping_core.contexts import GeneratorContext
from mapping_core.faults import did_you_mean
from mapping_plugin_layerwise._budget import shares

Specs = Sequence[ParameterSpec]


def layerwise(context: GeneratorContext, budget: str | Mapping[str, int]) -> Generator:
    """A latent a layer, named after the module that owns the parameters."""
    layers = context.layout.layers()
    table = budget if isinstance(budget, Mapping) else {}
    numbers: dict[str, int] = {}
    for name, specs in layers.items():
        found = [number for pattern, number in table.items() if any(spec.matches(pattern) for spec in specs)]
        numbers.update({name: found[0]} if found else {})
    for pattern in table:
        if not any(spec.matches(pattern) for spec in context.layout.mapped):
            raise ConfigError(_unmatched("layerwise", "budget", pattern, context.layout.mapped))
    return PartsGenerator(context, layers, budget, numbers, strategy="layerwise", parts="layers")


def grouped(
    context: GeneratorContext, groups: Mapping[str, Sequence[str]], budget: str | Mapping[str, int]
) -> Generator:
    """A latent a group, in the order and by the names of `groups`."""
    members: dict[str, list[ParameterSpec]] = {name: [] for name in groups}
    for spec in context.layout.mapped:
        owner = next((name for name, patterns in groups.items() if any(map(spec.matches, patterns))), None)
        if owner is None:
            raise ConfigError(
                f"strategy 'grouped': {spec.name!r} belongs to no group: add a pattern for it, or a last group with '*'"
            )
        members[owner].append(spec)
    for name, patterns in groups.items():
        for pattern in patterns:
            if not any(spec.matches(pattern) for spec in context.layout.mapped):
                raise ConfigError(_unmatched("grouped", f"groups.{name}", pattern, context.layout.mapped))
        if not members[name]:
            raise ConfigError(f"strategy 'grouped': group {name!r} is empty, earlier groups have all that it matches")
    numbers = dict(budget) if isinstance(budget, Mapping) else {}
    if unknown := [name for name in numbers if name not in groups]:
        hint = did_you_mean(unknown[0], groups)
        raise ConfigError(f"strategy 'grouped': budget names no group {unknown[0]!r}" + (f"; {hint}" if hint else ""))
    return PartsGenerator(context, members, budget, numbers, strategy="grouped", parts="groups")


def _unmatched(strategy: str, where: str, pattern: str, specs: Specs) -> str:
    hint = did_you_mean(pattern, [spec.name for spec in specs])
    return f"strategy {strategy!r}: {where}: {pattern!r} matches no mapped parameter" + (f"; {hint}" if hint else "")


class PartsGenerator(Generator):
    """One expansion a part."""

    def __init__(
        self,
        context: GeneratorContext,
        parts_of: Mapping[str, Specs],
        budget: str | Mapping[str, int],
        numbers: Mapping[str, int],
        *,
        strategy: str,
        parts: str,
    ) -> None:
        super().__init__()
        capacities = {name: sum(spec.numel for spec in specs) for name, specs in parts_of.items()}
        rule = budget if isinstance(budget, str) else "equal"
        each = shares(context.latent_dim, capacities, rule, numbers, strategy=strategy, parts=parts)
        self._names = tuple(parts_of)
        # A list and not a ModuleDict, whose keys may not hold the dots of module paths.
        self.expansions = nn.ModuleList(
            context.expansion(specs, share, stream=index)
            for index, (specs, share) in enumerate(zip(parts_of.values(), each, strict=True))
        )

    def _pairs(self) -> list[tuple[str, Expansion]]:
        return list(zip(self._names, self.expansions, strict=True))  # type: ignore[arg-type]

    @property
    def latent_sizes(self) -> dict[str, int]:
        return {name: expansion.latent_size for name, expansion in self._pairs()}

    def forward(self, latents: Mapping[str, Tensor], base: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return expand([(expansion, latents[name]) for name, expansion in self._pairs()], base)

    def generate_some(
        self,
        latents: Mapping[str, Tensor],
        base: Mapping[str, Tensor],
        names: frozenset[str],
        rows: tuple[int, int] | None = None,
    ) -> dict[str, Tensor]:
        pairs = [
            (expansion, latents[name]) for name, expansion in self._pairs() if not names.isdisjoint(expansion.names)
        ]
        return expand(pairs, base, names, rows)

    def assignment(self) -> dict[str, tuple[str, ...]]:
        return {name: expansion.names for name, expansion in self._pairs()}
