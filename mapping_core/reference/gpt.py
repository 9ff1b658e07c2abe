"""A small language model over characters."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class CharGPT(nn.Module):
    """A decoder-only Transformer with norms before each part, as GPT-2 (Radford et al. 2019); 826,433 weights.

    Input tokens [N, T] with T <= `context`, output logits [N, T, vocabulary]: at each place, of the next
    token. Initialised as torch's layers initialise themselves. `tied=True` uses the embedding as the
    head's weight too, on features divided by sqrt(width) as in T5 (Raffel et al. 2020); 818,048 weights.

    >>> sum(p.numel() for p in CharGPT().parameters())
    826433
    """

    def __init__(
        self,
        vocabulary: int = 65,
        context: int = 128,
        layers: int = 4,
        heads: int = 4,
        width: int = 128,
        dropout: float = 0.0,
        *,
        tied: bool = False,
    ) -> None:
        super().__init__()
        if width % heads:
            raise ValueError(f"width must be a multiple of heads, got {width} and {heads}")
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(GPTBlock(width, heads, dropout) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=not tied)
        self.gain = width**-0.5 if tied else 1.0
        if tied:
            self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[-1], device=tokens.device)
        hidden = self.norm(self.blocks(self.tokens(tokens) + self.places(places)))
        logits: Tensor = self.head(self.gain * hidden)
        return logits


class GPTBlock(nn.Module):
    """Causal self-attention, then two layers with GELU, each added to what came in."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = CausalAttention(width, heads, dropout)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(dropout)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        added: Tensor = x + self.mlp(self.norm2(x))
        return added


class CausalAttention(nn.Module):
    """Self-attention in which each place sees those up to itself; [N, T, width] -> [N, T, width]."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.inputs = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        n, t, width = x.shape
        query, key, value = self.inputs(x).view(n, t, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        dropout = self.dropout if self.training else 0.0
        mixed = functional.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=True)
        mixed = self.output(mixed.transpose(1, 2).reshape(n, t, width))
        return functional.dropout(mixed, self.dropout, self.training)
