"""Where components are tried: small targets, sizes and batches; a suite may bring its own.

Each kind has a frozen class with defaults that suit most components. One that needs more, a
callback for a certain strategy or a loss for a certain target, is tried in a world of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from attrs import define, evolve, field
from torch import Tensor, nn

from mapping_core.components import Component, GeneratorConfig, MapperConfig, ModulationConfig
from mapping_core.one_latent import OneLatent


class SmallNet(nn.Module):
    """A convolution, a norm, three linear layers and a scalar, 844 weights; [N, 1, 5, 5] -> [N, 3]."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.norm = nn.GroupNorm(2, 4)
        self.first = nn.Linear(4, 24)
        self.second = nn.Linear(24, 24)
        self.head = nn.Linear(24, 3)
        self.scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, x: Tensor) -> Tensor:
        features = self.norm(self.conv(x)).relu().mean(dim=(2, 3))
        logits: Tensor = self.head(self.second(self.first(features).tanh()).tanh()) * self.scale
        return logits


def small_net() -> nn.Module:
    """A `SmallNet`, the same each time, whatever the global random state is."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return SmallNet()


def images(count: int = 8) -> tuple[Tensor, Tensor]:
    """Inputs for `small_net` [count, 1, 5, 5], and a class for each."""
    x = torch.randn(count, 1, 5, 5, generator=torch.Generator().manual_seed(3))
    return x, x.flatten(1)[:, :3].argmax(dim=1)


def images_with_numbers(count: int = 8) -> tuple[Tensor, Tensor]:
    """The same inputs, each with three numbers to predict."""
    x, _ = images(count)
    return x, x.flatten(1)[:, :3].tanh()


class OneLatentStrategy(GeneratorConfig):
    """The plainest strategy, for components of other kinds to be tried with."""

    name = "one_latent"

    def build(self, context: Any) -> OneLatent:
        return OneLatent(context)


@define(frozen=True, kw_only=True)
class World:
    """What all kinds share: the seed that contexts are made with."""

    seed: int = 5

    def with_seed(self, seed: int) -> Any:
        """The same world under another seed."""
        return evolve(self, seed=seed)


@define(frozen=True, kw_only=True)
class MapperWorld(World):
    """The sizes a mapper is built for, R^d -> R^n."""

    in_features: int = 12
    out_features: int = 50


@define(frozen=True, kw_only=True)
class ModelWorld(World):
    """A target, how it is mapped, and a batch for it (inputs, targets)."""

    target: Callable[[], nn.Module] = small_net
    latent_dim: int = 40
    strategy: GeneratorConfig = field(factory=OneLatentStrategy)
    mapper: MapperConfig | str = "srht"
    modulation: ModulationConfig | None = None
    batch: Callable[[int], tuple[Any, Any]] = images


@define(frozen=True, kw_only=True)
class LossWorld(ModelWorld):
    """A mapped model, and the batches a loss is tried on: with the first that it takes."""

    batches: tuple[Callable[[int], tuple[Any, Any]], ...] = (images, images_with_numbers)


@define(frozen=True, kw_only=True)
class PolicyWorld(World):
    """The length of the run a policy is simulated in."""

    total_steps: int = 400


@define(frozen=True, kw_only=True)
class TrajectoryWorld(World):
    """The trajectory a dynamics model watches: `size` numbers over `steps` steps."""

    size: int = 24
    steps: int = 240


#: The world of each kind, where a suite has none of its own.
WORLDS: dict[str, World] = {
    "mapper": MapperWorld(),
    "generator": ModelWorld(),
    "modulation": ModelWorld(),
    "loss": LossWorld(),
    "phase_policy": PolicyWorld(),
    "dynamics_model": TrajectoryWorld(),
    "callback": ModelWorld(),
}


def world_of(component: type[Component]) -> Any:
    """The world a component of this kind is tried in by default."""
    return WORLDS[component.kind]
