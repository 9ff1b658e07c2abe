"""The generator of `quantized`."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mapping_core import BudgetError, ConfigError, Generator
from mapping_core.contexts import GeneratorContext
from mapping_core.nesting import nested
from mapping_plugin_quantize._codec import decode, encode
from mapping_plugin_quantize._grid import Grid, best_step, first_step

if TYPE_CHECKING:
    from mapping_plugin_quantize import Quantized

#: The latent of the steps; no path of a module is spelt so.
STEPS = "(steps)"

#: By how much e-folds a trained number moves its step: optimisers such as Adam move all numbers by as much, and a
#: step acts on a whole group.
RATE = 1 / 64


class QuantizedGenerator(Generator):
    """An inner strategy under latents that are rounded to a grid.

    The grid's steps are ``start * exp(RATE * t)``: the starts are kept beside the bits in use
    (0: none yet) in the buffer `grid` [2, groups], the numbers t train and start at 0.
    """

    def __init__(self, context: GeneratorContext, config: Quantized) -> None:
        super().__init__()
        if any(type(each) is type(config) for each in nested(config).values()):
            raise ConfigError("strategy 'quantized' inside 'quantized': one of them is enough, leave the other out")
        self.inner = _inner(context, config)
        sizes = self.inner.latent_sizes
        groups = [sum(sizes.values())] if config.groups == "all" else list(sizes.values())
        #: Bits of each group, as configured.
        self.bits = tuple(_bits(config.bits, sizes if config.groups == "latent" else {"all": 0}))
        self.register_buffer("grid", torch.zeros(2, len(groups)))
        numbers = torch.tensor(groups)
        self.register_buffer("_group", torch.arange(len(groups)).repeat_interleave(numbers), persistent=False)
        self.register_buffer("_numbers", numbers, persistent=False)
        self._counts = tuple(groups)

    grid: Tensor
    _group: Tensor
    _numbers: Tensor

    @property
    def latent_sizes(self) -> dict[str, int]:
        return {**self.inner.latent_sizes, STEPS: self.grid.shape[1]}

    def forward(self, latents: Mapping[str, Tensor], base: Mapping[str, Tensor]) -> dict[str, Tensor]:
        weights: dict[str, Tensor] = self.inner(self._quantized(latents), base)
        return weights

    def generate_some(
        self,
        latents: Mapping[str, Tensor],
        base: Mapping[str, Tensor],
        names: frozenset[str],
        rows: tuple[int, int] | None = None,
    ) -> dict[str, Tensor]:
        return self.inner.generate_some(self._quantized(latents), base, names, rows)

    def assignment(self) -> dict[str, tuple[str, ...]]:
        return {**self.inner.assignment(), STEPS: ()}

    def _quantized(self, latents: Mapping[str, Tensor]) -> dict[str, Tensor]:
        z, grid = self._joined(latents), self._grid(latents[STEPS])
        slowing = torch.rsqrt(self._numbers * grid.highest.clamp_min(1.0))
        spread = Grid(self._spread(grid.step), self._spread(grid.bits))
        rounded = spread.rounded(z, self._spread(slowing))
        return self._split(torch.where(spread.bits > 0, rounded, z))

    def _joined(self, latents: Mapping[str, Tensor]) -> Tensor:
        parts = [_wide(latents[name]) for name in self.inner.latent_sizes]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)

    def _split(self, z: Tensor) -> dict[str, Tensor]:
        sizes = self.inner.latent_sizes
        return dict(zip(sizes, torch.split(z, list(sizes.values()), dim=-1), strict=True))

    def _grid(self, trained: Tensor) -> Grid:
        """The grid by group; before there is one, the step is 1 and means nothing."""
        start, bits = _wide(self.grid)
        start = torch.where(bits > 0, start, 1.0)
        return Grid(start * torch.exp(RATE * _wide(trained)), bits)

    def _spread(self, of_groups: Tensor) -> Tensor:
        """From a number a group to one for each number of the latents."""
        return of_groups if of_groups.shape[-1] == 1 else of_groups.index_select(-1, self._group)

    @property
    def begun(self) -> bool:
        """Whether there is a grid."""
        return bool((self.grid[1] > 0).all())

    @torch.no_grad()
    def begin(self, latents: Mapping[str, Tensor], bits: tuple[int, ...], *, fitted: bool) -> None:
        """Lay a grid for the latents as they are, and set the numbers that train its steps to 0.

        Its steps are those of the least error (`fitted`), or LSQ's start for training on.
        """
        parts = torch.split(self._joined(latents), list(self._counts))
        used = torch.tensor(bits, dtype=torch.float32, device=self.grid.device)
        steps = (
            torch.stack([best_step(part, width) for part, width in zip(parts, bits, strict=True)])
            if fitted
            else first_step(torch.stack([part.abs().mean() for part in parts]), used)
        )
        # Numbers that are all 0 give no step; they stay 0 under any, but for 1 bit.
        steps = torch.where(steps > 0, steps, 1.0)
        latents[STEPS].zero_()
        self.grid.copy_(torch.stack((steps, used)))  # in place: weights kept in evaluation follow its version

    @torch.no_grad()
    def pack(self, latents: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
        if not self.begun:
            return None
        grid = self._grid(latents[STEPS])
        spread = Grid(self._spread(grid.step), self._spread(grid.bits))
        codes = (spread.integers(self._joined(latents)) - spread.lowest).int()
        stream = encode(codes.tolist(), self._widths())
        return {"codes": torch.frombuffer(bytearray(stream), dtype=torch.uint8), "steps": latents[STEPS].clone()}

    @torch.no_grad()
    def unpack(self, packed: Mapping[str, Tensor]) -> dict[str, Tensor]:
        if packed.keys() != {"codes", "steps"} or packed["steps"].shape != self.grid.shape[1:] or not self.begun:
            raise ValueError("its codes are not those of strategy 'quantized'")
        trained = packed["steps"].to(self.grid.device)
        grid = self._grid(trained)
        spread = Grid(self._spread(grid.step), self._spread(grid.bits))
        codes = torch.tensor(decode(packed["codes"].numpy().tobytes(), self._widths()), device=self.grid.device)
        return {**self._split(spread.values(codes + spread.lowest)), STEPS: trained}

    def _widths(self) -> list[int]:
        """The bits of each number, in use."""
        return [int(bits) for bits, count in zip(self.grid[1], self._counts, strict=True) for _ in range(count)]


def _wide(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def _inner(context: GeneratorContext, config: Quantized) -> Generator:
    """The inner strategy, on what the steps leave of the budget: how many those are, only it knows."""
    steps = 1
    while steps < context.latent_dim:
        inner = context.inner(config.strategy, layout=context.layout, latent_dim=context.latent_dim - steps)
        found = 1 if config.groups == "all" else len(inner.latent_sizes)
        if found <= steps:
            if found == steps:
                return inner
            break
        steps = found
    raise BudgetError(
        f"latent_dim={context.latent_dim:,} leaves nothing beside {steps:,} steps for strategy 'quantized': raise it, "
        "or use groups='all'"
    )


def _bits(bits: int | dict[str, int], names: Mapping[str, int]) -> list[int]:
    table = bits if isinstance(bits, dict) else {"*": bits}
    found = []
    for name in names:
        fitting = [number for pattern, number in table.items() if fnmatchcase(name, pattern)]
        if not fitting:
            raise ConfigError(
                f"strategy 'quantized': no pattern of bits matches the latent {name!r}: add one, or '*' as the last",
                path="bits",
            )
        found.append(fitting[0])
    for pattern in table:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise ConfigError(
                f"strategy 'quantized': {pattern!r} matches no latent of {', '.join(map(repr, names))}", path="bits"
            )
    return found
