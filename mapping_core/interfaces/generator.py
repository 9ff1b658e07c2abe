"""The generator ("strategy"): which latent feeds which parameters, through which mapper."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

from torch import Tensor, nn


class Generator(nn.Module, ABC):
    """Turns named latents into all mapped parameters of the target.

    It is stateless: `MappingModel` owns the latents and the base and passes both in, so
    weights can be generated under other latents too (perturbed ones, `torch.func.jvp`,
    `vmap`). A generator holds no trainable parameter. What it must remember beside the latent
    (masks) stands in persistent buffers, which `state_dict()` and files hold; what it can make
    again from the seed in others, which a model makes plain attributes, so that they are not sent
    to other ranks. Change persistent buffers in place.
    """

    @property
    @abstractmethod
    def latent_sizes(self) -> dict[str, int]:
        """How many numbers each latent has; their sum is the budget, exactly."""

    @abstractmethod
    def forward(self, latents: Mapping[str, Tensor], base: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Generate the parameters.

        `latents` maps a name to [..., size], `base` a parameter's name to its base weights.
        Returns one tensor for every mapped parameter of the layout, of the base's shape
        (with the latents' leading dimensions in front) and dtype. When every latent is 0
        the result is the base.
        """

    def generate_some(
        self,
        latents: Mapping[str, Tensor],
        base: Mapping[str, Tensor],
        names: frozenset[str],
        rows: tuple[int, int] | None = None,
    ) -> dict[str, Tensor]:
        """Generate the parameters in `names` alone; lazy generation asks for one module's at a time.

        With `rows` = (first, last) it asks for these rows of each alone, first <= row < last in the first
        dimension. Override it where they can be had without generating the others.
        """
        chosen = {name: weight for name, weight in self(latents, base).items() if name in names}
        if rows is None:
            return chosen
        lead = next(iter(latents.values())).ndim - 1
        return {name: weight.narrow(lead, rows[0], rows[1] - rows[0]) for name, weight in chosen.items()}

    def pack(self, latents: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
        """What a file holds in the latents' place, by a name of your own; None: the latents as they are.

        For latents of which the generator uses less than they hold, such as numbers rounded to a
        grid. A strategy with another one inside hands this and `unpack` on to it.
        """
        return None

    def unpack(self, packed: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Latents for which the weights are those of the ones that were packed, to the bit.

        Called when persistent buffers have what the file had. Raise `ValueError` for what `pack` did not give.
        """
        raise ValueError(f"{type(self).__name__} packs no latents")

    @abstractmethod
    def assignment(self) -> dict[str, tuple[str, ...]]:
        """Which parameters each latent feeds, by name; for `MappingModel.summary`."""
