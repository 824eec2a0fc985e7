"""From the rows of a sequence to one vector."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from crossclr.models.layers.dropout import Dropout
from crossclr.models.layers.packing import Packing
from crossclr.models.model_config import TransformerEncoderConfig


class MeanPool(nn.Module):
    """The mean row of each sequence."""

    def forward(self, x: Tensor, packing: Packing) -> Tensor:
        """Packed rows (rows, dim) to packed (sequences, dim)."""
        return torch.cat([group.mean(1) for group in packing.split(x)])


class MaxPool(nn.Module):
    """The largest value of each channel over the rows of each sequence."""

    def forward(self, x: Tensor, packing: Packing) -> Tensor:
        """Packed rows (rows, dim) to packed (sequences, dim)."""
        return torch.cat([group.amax(1) for group in packing.split(x)])


class AttentionPool(nn.Module):
    """Attention-aware feature aggregation (AF): every channel has its own softmax over time.

    Head h scores rows with a small MLP, ``gelu(x W1_h + b1_h) W2_h + b2_h``, and gives ``dim / heads`` channels;
    the channels of all heads together weight the row. ``b2`` cancels in the softmax; it is kept so that the model has
    the same parameters as the original. Dropout acts before the GELU, on the scores and on the weights.
    """

    def __init__(self, dim: int, heads: int, hidden: int, dropout: float) -> None:
        super().__init__()
        if dim % heads:
            raise ValueError(f"dim {dim} is not divisible by {heads} pooler heads")
        self.expand_weight = nn.Parameter(torch.empty(heads, hidden, dim))
        self.expand_bias = nn.Parameter(torch.empty(heads, hidden))
        self.score_weight = nn.Parameter(torch.empty(heads, dim // heads, hidden))
        self.score_bias = nn.Parameter(torch.empty(heads, dim // heads))
        self.dropout = Dropout(dropout)

    def scores(self, x: Tensor) -> Tensor:
        """(rows, dim) the score of each channel of each row."""
        parts = []
        for w1, b1, w2, b2 in zip(
            self.expand_weight, self.expand_bias, self.score_weight, self.score_bias, strict=True
        ):
            hidden = functional.gelu(self.dropout(functional.linear(x, w1, b1)))  # (rows, hidden)
            parts.append(functional.linear(hidden, w2, b2))  # (rows, dim / heads)
        return torch.cat(parts, dim=1)

    def forward(self, x: Tensor, packing: Packing) -> Tensor:
        """Packed rows (rows, dim) to packed (sequences, dim)."""
        scores = self.dropout(self.scores(x))
        pooled = [
            (self.dropout(score.softmax(1)) * rows).sum(1)
            for score, rows in zip(packing.split(scores), packing.split(x), strict=True)
        ]
        return torch.cat(pooled)


def build_pooler(config: TransformerEncoderConfig, dim: int) -> nn.Module:
    """The pooler of a config."""
    if config.pooler == "attention":
        return AttentionPool(dim, config.pooler_heads, config.pooler_hidden or dim, config.dropout)
    return MaxPool() if config.pooler == "max" else MeanPool()
