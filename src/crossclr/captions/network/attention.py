"""Attention of the captioner: padded, with keys that can be cached."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from crossclr.models.layers.dropout import Dropout


class Heads(nn.Module):
    """Multi-head attention without an output projection.

    Query, key and value are one matrix, in this order.

    Args:
        dim: channels.
        heads: heads, each with ``dim / heads`` consecutive channels.
        dropout: on the attention probabilities.
    """

    def __init__(self, dim: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.dim, self.heads = dim, heads
        self.projection = nn.Linear(dim, 3 * dim)
        self.dropout = Dropout(dropout)

    def query(self, x: Tensor) -> Tensor:
        """(count, length, dim) to (count, heads, length, dim / heads)."""
        return self._split(functional.linear(x, self.projection.weight[: self.dim], self.projection.bias[: self.dim]))

    def key_value(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values, each (count, heads, length, dim / heads)."""
        key, value = self.project_key_value(x).chunk(2, dim=-1)
        return self._split(key), self._split(value)

    def project_key_value(self, x: Tensor) -> Tensor:
        """(..., dim) to keys and values side by side (..., 2 dim)."""
        return functional.linear(x, self.projection.weight[self.dim :], self.projection.bias[self.dim :])

    def all(self, x: Tensor) -> tuple[Tensor, ...]:
        """Query, key and value of the same rows."""
        return self.split(self.projection(x))

    def split(self, projected: Tensor) -> tuple[Tensor, ...]:
        """(count, length, n dim) to n parts (count, heads, length, dim / heads)."""
        return tuple(self._split(part) for part in torch.split(projected, self.dim, dim=-1))

    def mix(self, query: Tensor, key: Tensor, value: Tensor, allowed: Tensor | None) -> Tensor:
        """Attention itself: (count, queries, dim); ``allowed`` fits (count, heads, queries, length)."""
        scores = query @ key.transpose(2, 3) / math.sqrt(query.shape[-1])
        if allowed is not None:
            scores = scores.masked_fill(~allowed, -math.inf)
        mixed: Tensor = self.dropout(scores.softmax(-1)) @ value
        return mixed.transpose(1, 2).flatten(2)

    def _split(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], self.heads, -1).transpose(1, 2)
