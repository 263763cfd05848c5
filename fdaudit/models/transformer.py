"""A small transformer that classifies texts, trained from scratch (encoder of Vaswani et al. 2017, norms first)."""

from __future__ import annotations

from typing import cast

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from fdaudit.config import Config
from fdaudit.models.network import Network
from fdaudit.types import PADDING

__all__ = ["TransformerParams", "transformer"]

_MASKED = -1e9


class TransformerParams(Config):
    """Embeddings, layers of attention, and a mean over the words of a text."""

    width: int = Field(default=32, ge=2, le=1024)
    """Entries of an embedding; a multiple of `heads`."""
    depth: int = Field(default=1, ge=1, le=12)
    """Number of layers."""
    heads: int = Field(default=2, ge=1, le=64)
    """Attention heads of a layer."""


class _Layer(nn.Module):
    """Self-attention and a network of two linear layers, each after a LayerNorm and added to its input."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mixed, self.joined = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, h: Tensor, away: Tensor) -> Tensor:
        """Return states (n, L, d). No word attends to a token that is `away` (n, L)."""
        split = []
        for part in self.mixed(self.first(h)).chunk(3, 2):
            of_heads = part.unflatten(2, (self.heads, -1))
            split.append(of_heads.transpose(1, 2))
        q, k, v = split  # (n, heads, L, d / heads) each
        score = (q @ k.transpose(2, 3)) / q.shape[3] ** 0.5
        attended = score.masked_fill(away[:, None, None], _MASKED).softmax(3) @ v
        h = h + cast(Tensor, self.joined(attended.transpose(1, 2).flatten(2)))
        return h + cast(Tensor, self.narrow(F.gelu(self.wide(self.second(h)))))


class _TextEncoder(nn.Module):
    """Maps token numbers (n, L) to features (n, d): the mean state of a text's words, padding left out."""

    def __init__(self, params: TransformerParams, length: int, words: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, params.width)
        self.position = nn.Embedding(length, params.width)
        self.layers = nn.ModuleList()
        for _ in range(params.depth):
            self.layers.append(_Layer(params.width, params.heads))
        self.norm = nn.LayerNorm(params.width)
        for table in (self.embedding, self.position):
            nn.init.normal_(table.weight, std=0.1)

    def forward(self, x: Tensor) -> Tensor:
        """Return features (n, d)."""
        away = x == PADDING
        place = torch.arange(x.shape[1], device=x.device).expand(x.shape)
        h = self.embedding(x) + self.position(place)
        for layer in self.layers:
            h = layer(h, away)
        there = (~away).to(h.dtype).unsqueeze(2)
        total: Tensor = (self.norm(h) * there).sum(1)
        return total / there.sum(1).clamp_min(1)


def transformer(params: TransformerParams, length: int, classes: int, words: int) -> Network:
    """Return a transformer for texts of L tokens.

    Raises:
        ValueError: the heads do not divide the width.
    """
    if params.width % params.heads:
        raise ValueError(f"width {params.width} is no multiple of {params.heads} heads")
    return Network(_TextEncoder(params, length, words), nn.Linear(params.width, classes))
