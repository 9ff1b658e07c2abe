"""P18: the padding row of an embedding. Source: mappings that move it, so that padding begins to mean something."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from mapping_core import MappingModel
from tests import targets

TOKENS = torch.tensor([[1, 2, 0, 0], [3, 0, 4, 1]])


class Padded(nn.Module):
    """An embedding with padding and a head on the mean; [N, T] -> [N, 5] (or [N, 3] when not tied)."""

    def __init__(self, *, padding_idx: int = 0, tied: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(5, 4, padding_idx=padding_idx)
        self.head = nn.Linear(4, 5 if tied else 3, bias=False)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.head(self.embedding(tokens).mean(dim=1))
        return logits


def head_first() -> nn.Module:
    """Return a tied pair whose output layer is registered first, so that the embedding's name is the alias."""

    class HeadFirst(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.head = nn.Linear(4, 5, bias=False)
            self.embedding = nn.Embedding(5, 4, padding_idx=0)
            self.head.weight = self.embedding.weight

        def forward(self, tokens: Tensor) -> Tensor:
            logits: Tensor = self.head(self.embedding(tokens).mean(dim=1))
            return logits

    return HeadFirst()


def bag() -> nn.Module:
    """Return an EmbeddingBag with padding."""
    torch.manual_seed(0)
    return nn.Sequential(nn.EmbeddingBag(5, 4, padding_idx=0, mode="sum"), nn.Linear(4, 3))


TARGETS: dict[str, tuple[Callable[[], nn.Module], str, int]] = {
    "plain": (Padded, "embedding.weight", 0),
    "last_row": (lambda: Padded(padding_idx=-1), "embedding.weight", 4),
    "tied_head": (lambda: Padded(tied=True), "embedding.weight", 0),
    "tied_head_first": (head_first, "head.weight", 0),
    "bag": (bag, "0.weight", 0),
}


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("strategy", ["slvt", "layerwise"])
@pytest.mark.parametrize(("base", "lazy"), [("current", False), ("current", True), ("seeded", False), ("zero", False)])
def test_the_row_stays_zero(name: str, strategy: str, lazy: bool, base: str, tmp_path: Path) -> None:
    """Under any latent the padding row is zero and every other row moves; training and export do not change that."""
    make, key, row = TARGETS[name]
    model = targets.moved(MappingModel(make(), 12, strategy, lazy=lazy, base=base))
    weight = model.generate_weights()[key]
    others = [index for index in range(5) if index != row]
    assert not weight[row].any()
    assert weight[others].abs().sum(dim=1).all()
    targets.assert_equals_direct(model, TOKENS)
    targets.trainer_of(model, [(TOKENS, torch.tensor([1, 2]))], max_epochs=3).fit()
    assert not model.export().get_parameter(key)[row].any()
    model.save(tmp_path / "m")
    assert not MappingModel.load(tmp_path / "m", make()).generate_weights()[key][row].any()


@pytest.mark.parametrize("name", TARGETS)
def test_the_row_gets_no_gradient(name: str) -> None:
    """No gradient reaches the latent through the padding row, not even through a tied head."""
    make, key, row = TARGETS[name]
    model = targets.moved(MappingModel(make(), 12))
    (gradient,) = torch.autograd.grad(model.generate_weights()[key][row].sum(), model.latent)
    assert not gradient.any()
    (gradient,) = torch.autograd.grad(model.generate_weights()[key].square().sum(), model.latent)
    assert gradient.any()


def test_a_row_that_is_not_zero_keeps_its_value() -> None:
    """The padding row of a pretrained embedding, whatever is in it, stays as it is."""
    table = torch.randn(5, 4)  # as Embedding.from_pretrained takes it
    target = nn.Sequential(nn.Embedding(5, 4, padding_idx=2, _weight=table), nn.Linear(4, 3))
    weight = targets.moved(MappingModel(target, 12)).generate_weights()["0.weight"]
    assert torch.equal(weight[2], table[2])
    assert not torch.equal(weight[1], table[1])


def test_trained_directly() -> None:
    """An embedding that trains directly keeps its padding row as well."""
    model = MappingModel(Padded(), 26, trained="embedding")
    targets.trainer_of(model, [(TOKENS, torch.tensor([1, 2]))], max_epochs=3).fit()
    trained = model.export().get_parameter("embedding.weight")
    assert not trained[0].any()
    assert not torch.equal(trained, Padded().embedding.weight)


def test_many_at_once() -> None:
    """The row stays under `vmap` over latents too."""
    model = MappingModel(Padded(), 12)
    weights = torch.func.vmap(lambda vector: model.generate_weights(model._split(vector)))(torch.randn(3, 12))
    assert not weights["embedding.weight"][:, 0].any()
    assert weights["embedding.weight"][:, 1:].any(dim=-1).all()
