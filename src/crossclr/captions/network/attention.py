"""Attention of the captioner: padded, with keys that can be cached."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from crossclr.models.layers.dropout import Dropout

ALL, QUERY, KEY_VALUE = slice(0, 3), slice(0, 1), slice(1, 3)  # parts of the projection


class Heads(nn.Module):
    """Multi-head attention without an output projection; query, key and value are one matrix, in this order."""

    def __init__(self, dim: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.dim, self.heads = dim, heads
        self.projection = nn.Linear(dim, 3 * dim)
        self.dropout = Dropout(dropout)

    def project(self, x: Tensor, parts: slice = ALL) -> Tensor:
        """(..., dim) to the chosen parts, next to each other: (..., parts · dim)."""
        rows = slice(parts.start * self.dim, parts.stop * self.dim)
        return functional.linear(x, self.projection.weight[rows], self.projection.bias[rows])

    def split(self, projected: Tensor) -> tuple[Tensor, ...]:
        """(count, length, n · dim) to n parts (count, heads, length, dim / heads)."""
        count, length = projected.shape[:2]
        parts = torch.split(projected, self.dim, dim=-1)
        return tuple(part.view(count, length, self.heads, -1).transpose(1, 2) for part in parts)

    def parts_of(self, x: Tensor, parts: slice = ALL) -> tuple[Tensor, ...]:
        """Query, key and value of (count, length, dim), or some of them."""
        return self.split(self.project(x, parts))

    def mix(self, query: Tensor, key: Tensor, value: Tensor, allowed: Tensor | None) -> Tensor:
        """Attention itself: (count, queries, dim); ``allowed`` fits (count, heads, queries, length)."""
        scores = query @ key.transpose(2, 3) / math.sqrt(query.shape[-1])
        if allowed is not None:
            scores = scores.masked_fill(~allowed, -math.inf)
        mixed: Tensor = self.dropout(scores.softmax(-1)) @ value
        return mixed.transpose(1, 2).flatten(2)
