"""The loss `smoothness`, of the outputs or of the mapping."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from attrs import evolve
from torch import Tensor

from mapping_core import MappingModel
from mapping_core.interfaces.loss import LossStep
from mapping_core.logs import get_logger
from mapping_plugin_mapping_loss._paired import Paired
from mapping_plugin_mapping_loss._term import Term


class OutputSmoothness(Term):
    """``||J||_F^2 / n`` of the n outputs of a batch in the latent, by Hutchinson's estimator.

    For signs u drawn at random, ``E ||J' u||^2 = ||J||_F^2`` (Hutchinson 1990), and J' u is one
    backward pass; `samples` of them are averaged. Its gradient differentiates that pass, so
    the target needs second derivatives: cuDNN's recurrent layers have none.
    """

    kind = "smoothness"
    twice = True

    def __init__(self, *, samples: int) -> None:
        super().__init__()
        self.samples = samples

    def measure(self, step: LossStep, paired: Paired) -> Tensor:
        if torch.is_grad_enabled():
            value = _mean_square([paired.reference], paired.latents, self.samples, create_graph=True)
            # Outputs that are linear in the latent have a constant for it, which has no graph.
            return value if value.requires_grad else value + _zero(paired.latents)
        with torch.enable_grad():  # to validate: the gradient of outputs is asked for, that of the term is not
            leaves = _leaves(step.latents)
            alone = Paired(evolve(step, latents=leaves), self.kind)
            return _mean_square([alone.reference], leaves, self.samples, create_graph=False)


class MappingSmoothness(Term):
    """``||J||_F^2 / n`` of the n mapped weights in the latent, by the same estimator, without the target.

    Where the mapping is linear in the latent, J is a constant. That is found out when the loss
    is built, by comparing J' u at two latents; the term is then `inert` and gives 0.
    """

    kind = "smoothness"
    needs_reference = False

    def __init__(self, model: MappingModel, *, samples: int) -> None:
        super().__init__()
        self.samples = samples
        self._generate = model.generate_weights  # a method, not the module: its parameters are not the loss's
        self.inert = self._is_constant(model)
        if self.inert:
            get_logger().warning(
                "smoothness is left out: the mapping is linear, so its Jacobian is a constant; "
                "use of='outputs', or a mapper such as 'mlp'"
            )

    def measure(self, step: LossStep, paired: Paired) -> Tensor:
        if self.inert:
            return _zero(step.latents)
        create_graph = torch.is_grad_enabled()
        latents = step.latents if create_graph else _leaves(step.latents)
        with torch.enable_grad():
            weights = list(self._generate(latents).values())
            return _mean_square(weights, latents, self.samples, create_graph=create_graph)

    def _is_constant(self, model: MappingModel) -> bool:
        generator = torch.Generator().manual_seed(0)  # its own: building a loss moves nobody's random state
        signs: list[Tensor] = []
        found = []
        with torch.enable_grad():
            for _ in range(2):
                somewhere = {
                    name: torch.randn(latent.shape, generator=generator).to(latent).requires_grad_()
                    for name, latent in model.latents.items()
                }
                weights = list(self._generate(somewhere).values())
                signs = signs or [_signs_like(weight, generator) for weight in weights]
                found.append(torch.cat(_pulled_back(weights, signs, somewhere, create_graph=False)))
        return torch.allclose(found[0], found[1], rtol=1e-3, atol=1e-5 * float(found[0].abs().max()))


def _mean_square(
    outputs: Sequence[Tensor], latents: Mapping[str, Tensor], samples: int, *, create_graph: bool
) -> Tensor:
    squares = []
    for _ in range(samples):
        signs = [_signs_like(output) for output in outputs]
        pulled = _pulled_back(outputs, signs, latents, create_graph=create_graph, retain_graph=True)
        squares.append(torch.cat(pulled).square().sum())
    return torch.stack(squares).mean() / sum(output.numel() for output in outputs)


def _pulled_back(
    outputs: Sequence[Tensor],
    signs: Sequence[Tensor],
    latents: Mapping[str, Tensor],
    *,
    create_graph: bool,
    retain_graph: bool = False,
) -> list[Tensor]:
    pulled = torch.autograd.grad(
        list(outputs),
        list(latents.values()),
        list(signs),
        create_graph=create_graph,
        retain_graph=retain_graph or create_graph,
        materialize_grads=True,
    )
    return list(pulled)


def _signs_like(tensor: Tensor, generator: torch.Generator | None = None) -> Tensor:
    if generator is None:
        return torch.randint_like(tensor, 2) * 2 - 1
    return torch.randint(2, tensor.shape, generator=generator).to(tensor) * 2 - 1


def _zero(latents: Mapping[str, Tensor]) -> Tensor:
    """0 with a graph, so that a loop can call `backward`."""
    return torch.cat(list(latents.values())).sum() * 0.0


def _leaves(latents: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: latent.detach().requires_grad_() for name, latent in latents.items()}
