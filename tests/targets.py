"""Tiny targets and data sets that the tests train on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from attrs import define
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from mapping_core import MappingModel, MappingTrainer


def mlp(*, seed: int = 0) -> nn.Sequential:
    """Two layers, 6 -> 8 -> 3; 83 weights."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


def conv_norm() -> nn.Sequential:
    """A convolution with a fresh BatchNorm; [N, 1, 6, 6] -> [N, 3]."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)
    )


def estimated_conv_norm() -> nn.Sequential:
    """The same after some batches: its BatchNorm holds an estimate."""
    module = conv_norm()
    for _ in range(3):
        module(torch.randn(8, 1, 6, 6) * 2 + 1)
    return module


class Residual(nn.Module):
    """x + f(x), then a head; [N, 6] -> [N, 3]."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.block = nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 6), nn.GELU())
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(x + self.block(x))
        return logits


class Recurrent(nn.Module):
    """An LSTM's last state through a head; [N, T, 4] -> [N, 3]."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.lstm = nn.LSTM(4, 5, batch_first=True)
        self.head = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.lstm(x)[0][:, -1])
        return logits


class Tied(nn.Module):
    """An embedding whose weight is the output layer's too; [N] tokens -> [N, 7]."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(7, 4)
        self.middle = nn.Linear(4, 4)
        self.output = nn.Linear(4, 7, bias=False)
        self.output.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.output(self.middle(self.embedding(tokens)).tanh())
        return logits


class Scalars(nn.Module):
    """Parameters of one element: a logit scale without dimensions, a PReLU slope, a 1 x 1 layer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Linear(6, 3)
        self.slope = nn.PReLU()
        self.one = nn.Linear(1, 1)
        self.logit_scale = nn.Parameter(torch.tensor(2.5))

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.slope(self.body(x))
        logits: Tensor = self.one(hidden[..., None])[..., 0] * self.logit_scale
        return logits


class LookAlikeNames(nn.Module):
    """A parameter `a.b` and a parameter `a_b`."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.ParameterDict({"b": nn.Parameter(torch.full((6,), 2.0))})
        self.a_b = nn.Parameter(torch.full((3,), 5.0))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = (x * self.a["b"]).sum(-1, keepdim=True) + self.a_b
        return logits


def partly_frozen() -> nn.Sequential:
    """The first layer asks for no gradient."""
    module = mlp()
    module[0].requires_grad_(False)
    return module


def mixed_dtypes() -> nn.Sequential:
    """A bfloat16 layer, and a float32 layer behind a cast."""

    class ToFloat(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.float()

    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8).bfloat16(), nn.ReLU(), ToFloat(), nn.Linear(8, 3))


@define(frozen=True)
class Case:
    """A target, and a batch of inputs for it."""

    name: str
    make: Callable[[], nn.Module]
    inputs: Callable[[], Tensor]


def _rows(*shape: int, dtype: torch.dtype = torch.float32) -> Callable[[], Tensor]:
    return lambda: torch.randn(*shape, generator=torch.Generator().manual_seed(1)).to(dtype)


CASES = (
    Case("linear", lambda: mlp()[0], _rows(5, 6)),
    Case("mlp", mlp, _rows(5, 6)),
    Case("conv_norm", conv_norm, _rows(5, 1, 6, 6)),
    Case("estimated_conv_norm", estimated_conv_norm, _rows(5, 1, 6, 6)),
    Case("residual", Residual, _rows(5, 6)),
    Case("recurrent", Recurrent, _rows(5, 3, 4)),
    Case("tied", Tied, lambda: torch.tensor([0, 3, 6, 3, 1])),
    Case("scalars", Scalars, _rows(5, 6)),
    Case("partly_frozen", partly_frozen, _rows(5, 6)),
    Case("bfloat16", lambda: mlp().bfloat16(), _rows(5, 6, dtype=torch.bfloat16)),
    Case("float64", lambda: mlp().double(), _rows(5, 6, dtype=torch.float64)),
    Case("mixed_dtypes", mixed_dtypes, _rows(5, 6, dtype=torch.bfloat16)),
    Case("look_alike_names", LookAlikeNames, _rows(5, 6)),
)


def moved(model: MappingModel, *, seed: int = 0) -> MappingModel:
    """Return the model with a latent that is not 0."""
    with torch.no_grad():
        model.latent.normal_(generator=torch.Generator().manual_seed(seed))
    return model


def first_tensor(output: Any) -> Tensor:
    """Return the output, or the first tensor of a sequence."""
    return output if isinstance(output, Tensor) else first_tensor(output[0])


def assert_equals_direct(model: MappingModel, *inputs: Any) -> None:
    """The model computes what its export computes, and its gradient is the export's own, pulled back to the latent."""
    direct = model.export()
    model.zero_grad()
    output, expected = first_tensor(model(*inputs)), first_tensor(direct(*inputs))
    torch.testing.assert_close(output, expected)
    output.square().sum().backward()  # type: ignore[no-untyped-call]
    expected.square().sum().backward()  # type: ignore[no-untyped-call]
    grads = {name: direct.get_parameter(name).grad for name in (spec.name for spec in model.layout.mapped)}
    weights = model.generate_weights()
    used = [name for name, grad in grads.items() if grad is not None]
    (pulled,) = torch.autograd.grad(
        [weights[name] for name in used], model.latent, [grads[name] for name in used], materialize_grads=True
    )
    torch.testing.assert_close(model.latent.grad, pulled, rtol=1e-4, atol=1e-5)


def latent_of(trainer: MappingTrainer) -> Tensor:
    """Return the latent vector of the mapped model that a trainer trains."""
    assert isinstance(trainer.model, MappingModel)
    return trainer.model.latent_vector()


def rows(count: int = 24) -> tuple[Tensor, Tensor]:
    """Inputs [count, 6] and the class of each, which a linear layer can learn."""
    x = torch.randn(count, 6, generator=torch.Generator().manual_seed(2))
    return x, x[:, :3].argmax(dim=1)


def loader(count: int = 24, *, batch_size: int = 8, shuffle: bool = False) -> DataLoader[tuple[Tensor, ...]]:
    """Batches of `rows`."""
    return DataLoader(TensorDataset(*rows(count)), batch_size=batch_size, shuffle=shuffle)


def trainer_of(model: nn.Module | None = None, batches: Any = None, *more: Any, **options: Any) -> MappingTrainer:
    """Return a quiet trainer of two epochs on the CPU, by default of a mapped `mlp` on `loader()`."""
    model = MappingModel(mlp(), 16) if model is None else model
    given = {"max_epochs": 2, "seed": 0, "accelerator": "cpu", "progress": False, **options}
    return MappingTrainer(model, loader() if batches is None else batches, *more, **given)
