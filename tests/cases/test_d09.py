"""D9: loss and accumulation. Source: transformers issue 37766 (means of means over batches of unequal size)."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from mapping_core import MappingModel
from tests import targets


class Tagger(nn.Module):
    """Logits of each token; [N, T] -> [N, 3, T]."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(7, 5)
        self.head = nn.Linear(5, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.head(self.embedding(tokens))
        return logits.transpose(1, 2)


def batches() -> tuple[tuple[Tensor, Tensor], ...]:
    """One batch with 1 token that counts, and one with 9."""
    tokens = torch.randint(7, (4, 5), generator=torch.Generator().manual_seed(1))
    labels = torch.full((4, 5), -100)
    labels[0, 2] = 1
    labels[2] = tokens[2] % 3
    labels[3, 1:] = tokens[3, 1:] % 3
    return (tokens[:2], labels[:2]), (tokens[2:], labels[2:])


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
@pytest.mark.parametrize("clip", [None, 0.01])
def test_windows_weigh_by_tokens(order: tuple[int, int], clip: float | None) -> None:
    """Two batches of 1 and 9 tokens, accumulated, make the step of one batch of 10, in either order."""
    parts = [batches()[index] for index in order]
    whole = tuple(torch.cat(pair) for pair in zip(*parts, strict=True))
    latents = []
    for loader, accumulate in ((parts, 2), ([whole], 1)):
        model = MappingModel(Tagger().double(), 20).double()
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        made = targets.trainer_of(
            model, loader, optimizer=optimizer, accumulate=accumulate, clip_norm=clip, max_epochs=3
        )
        history = made.fit()
        assert made.step == 3
        latents.append((model.latent_vector(), history["train_loss"]))
    torch.testing.assert_close(latents[0][0], latents[1][0], rtol=0, atol=1e-12)
    assert latents[0][1] == pytest.approx(latents[1][1], rel=1e-12)
    assert latents[0][0].any()
