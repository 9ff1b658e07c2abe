"""The same inputs under several latents, with the same random draws: what differs is then the latents' doing."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from mapping_core.builtin.losses.predictions import main_tensor
from mapping_core.interfaces.loss import LossStep


class Paired:
    """Passes of one step that see one random state; `loss` is who asks, for errors.

    Without this, two passes through dropout differ by their masks, and what a term measures is
    mask noise. The first pass moves torch's random state on as any pass does; later ones leave
    it as they find it, so that noise drawn between them is new.

    With `twice`, attention runs in its plain form, whose gradient can be differentiated.
    """

    def __init__(self, step: LossStep, loss: str, *, twice: bool = False) -> None:
        self.latents = step.latents
        self._step = step
        self._loss = loss
        self._twice = twice
        self._state: list[Tensor] | None = None
        self._reference: Tensor | None = None

    @property
    def reference(self) -> Tensor:
        """The outputs under the step's own latents, computed once."""
        if self._reference is None:
            self._reference = self.outputs(self.latents)
        return self._reference

    def outputs(self, latents: Mapping[str, Tensor]) -> Tensor:
        """The tensor that a task loss would score, under `latents`; at least float32."""
        before = self._random_state()
        if self._state is None:
            self._state = before
        else:
            self._set_random_state(self._state)
        attention: AbstractContextManager[None] = sdpa_kernel(SDPBackend.MATH) if self._twice else nullcontext()
        with attention:
            outputs = main_tensor(self._step.evaluate(latents), self._loss)
        if before is not self._state:
            self._set_random_state(before)
        return outputs.float() if outputs.dtype in (torch.float16, torch.bfloat16) else outputs

    def _random_state(self) -> list[Tensor]:
        device = self._device
        own = [] if device.type == "cpu" else [torch.get_device_module(device).get_rng_state(device)]
        return [torch.get_rng_state(), *own]

    def _set_random_state(self, state: list[Tensor]) -> None:
        torch.set_rng_state(state[0])
        for own in state[1:]:
            torch.get_device_module(self._device).set_rng_state(own, self._device)

    @property
    def _device(self) -> torch.device:
        return next(iter(self.latents.values())).device


def displaced(latents: Mapping[str, Tensor], by: Tensor) -> dict[str, Tensor]:
    """Latents plus a vector [d], which is cut to their sizes in order."""
    parts = torch.split(by, [latent.shape[-1] for latent in latents.values()])
    return {name: latent + part for (name, latent), part in zip(latents.items(), parts, strict=True)}


def noise_like(latents: Mapping[str, Tensor]) -> Tensor:
    """A standard normal vector [d] as long as all latents together."""
    first = next(iter(latents.values()))
    count = sum(latent.shape[-1] for latent in latents.values())
    return torch.randn(count, dtype=first.dtype, device=first.device)
