"""Sinusoidal positions as in COOT.

Initial weights of the transformer networks.

From the rows of a sequence to one vector.

Multi-head attention and the post-norm transformer layer, on packed rows.
"""

import math
from collections.abc import Callable, Iterator
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from crossclr.models.model_config import TransformerEncoderConfig
from crossclr.models.norm import CootNorm
from crossclr.models.packing import Dropout, Packing


def position_table(length: int, dim: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """(length, dim) sine on even and cosine on odd channels of ``position / 10000^(2 channel / dim)``.

    The exponent uses the channel index itself, so it runs from 0 to 2, not from 0 to 1 as in the usual table.
    """
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    channel = torch.arange(dim, dtype=wide)
    angle = torch.arange(length, dtype=wide).unsqueeze(1) / 10000 ** (2 * channel / dim)  # (length, dim)
    return torch.where(torch.arange(dim) % 2 == 0, angle.sin(), angle.cos()).to(dtype)


class Positions(nn.Module):
    """Adds positions to rows; the table grows with the longest sequence seen and is not part of the state."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim
        # A plain attribute: a buffer would stay rounded to float32 in a float64 model.
        self.table = position_table(128, dim)

    def forward(self, x: Tensor, positions: Tensor, length: int) -> Tensor:
        """Rows (rows, dim) with ``positions`` (rows,), all below ``length``."""
        if length > self.table.shape[0] or self.table.dtype != x.dtype or self.table.device != x.device:
            size = max(length, self.table.shape[0])
            with torch.inference_mode(False):  # the table is used after this call
                self.table = position_table(size, self.dim, x.dtype).to(x.device)
        return x + self.table.index_select(0, positions)


def initialise(module: nn.Module, initial_weights: Literal["coot", "xavier"]) -> None:
    """Draw the weights of a network; norms start as the identity.

    ``coot``: weights and biases from a normal distribution with deviation 0.01, truncated at two deviations.
    ``xavier``: weights from a uniform distribution that preserves the scale of the activations, biases zero.

    Example:
        >>> from torch import nn
        >>> layer = nn.Linear(4, 4)
        >>> initialise(layer, "coot")
        >>> bool(layer.weight.abs().max() <= 0.02)
        True
        >>> initialise(layer, "xavier")
        >>> layer.bias.tolist()
        [0.0, 0.0, 0.0, 0.0]
    """
    for name, parameter in _without_norms(module):
        if initial_weights == "coot":
            nn.init.trunc_normal_(parameter, std=0.01, a=-0.02, b=0.02)
        elif name.endswith("bias"):
            nn.init.zeros_(parameter)
        else:
            bound = math.sqrt(6 / (parameter.shape[-1] + parameter.shape[-2]))  # heads, if any, come first
            nn.init.uniform_(parameter, -bound, bound)


def _without_norms(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    norms = {
        id(parameter)
        for part in module.modules()
        if isinstance(part, CootNorm | nn.LayerNorm)
        for parameter in part.parameters()
    }
    return ((name, parameter) for name, parameter in module.named_parameters() if id(parameter) not in norms)


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


class Attention(nn.Module):
    """Multi-head attention over the rows of each sequence; dropout acts on the attention probabilities.

    The three projections are one matrix (query, key, value in this order) and run on all rows at once; only the
    attention itself sees sequences. A head has ``dim / heads`` consecutive channels.
    """

    def __init__(self, dim: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.projection = nn.Linear(dim, 3 * dim)
        self.output = nn.Linear(dim, dim)

    def _heads(self, x: Tensor) -> Tensor:
        """(count, length, dim) to (count, heads, length, dim / heads)."""
        return x.view(*x.shape[:2], self.heads, -1).transpose(1, 2)

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, allowed: Tensor | None = None) -> Tensor:
        """Dense attention: (count, queries, dim) over (count, length, dim) to (count, queries, dim)."""
        mixed = functional.scaled_dot_product_attention(
            self._heads(query),
            self._heads(key),
            self._heads(value),
            attn_mask=allowed,
            dropout_p=self.dropout if self.training else 0.0,
        )
        return mixed.transpose(1, 2).flatten(2)

    def forward(self, x: Tensor, packing: Packing) -> Tensor:
        """Self-attention of packed rows (rows, dim)."""
        mixed = [
            self._attend(*group.chunk(3, dim=2)).flatten(0, 1) for group in packing.split(self.projection(x))
        ]  # one (count * length, dim) per length
        out: Tensor = self.output(torch.cat(mixed))
        return out

    def cross(self, query: Tensor, x: Tensor, packing: Packing) -> Tensor:
        """One packed query (sequences, dim) over the packed rows (rows, dim) of its own sequence."""
        q, kv = self._project_apart(query, x)
        queries = packing.split_sequences(q)
        mixed = [
            self._attend(part.unsqueeze(1), *group.chunk(2, dim=2)).squeeze(1)
            for part, group in zip(queries, packing.split(kv), strict=True)
        ]
        out: Tensor = self.output(torch.cat(mixed))
        return out

    def dense(self, query: Tensor, x: Tensor, allowed: Tensor) -> Tensor:
        """Padded attention: (count, queries, dim) over (count, length, dim) where ``allowed`` (count, length)."""
        q, kv = self._project_apart(query, x)
        key, value = kv.chunk(2, dim=2)
        out: Tensor = self.output(self._attend(q, key, value, allowed[:, None, None, :]))
        return out

    def _project_apart(self, query: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        dim = query.shape[-1]
        weight, bias = self.projection.weight, self.projection.bias
        q = functional.linear(query, weight[:dim], bias[:dim])
        return q, functional.linear(x, weight[dim:], bias[dim:])  # (..., dim), (..., 2 dim)


class TransformerLayer(nn.Module):
    """``y = dropout(norm(x + attention(x)))``, then ``norm(y + feed_forward(y))``: post-norm, as in COOT.

    Args:
        dropout: on attention probabilities, on ``y`` and inside the feed-forward part.
        norm: makes both norms.
    """

    def __init__(
        self, dim: int, heads: int, hidden: int, dropout: float, norm: Callable[[int], nn.Module] = CootNorm
    ) -> None:
        super().__init__()
        self.attention = Attention(dim, heads, dropout)
        self.attention_norm = norm(dim)
        self.expand = nn.Linear(dim, hidden)
        self.contract = nn.Linear(hidden, dim)
        self.output_norm = norm(dim)
        self.dropout = Dropout(dropout)

    def _finish(self, x: Tensor, attended: Tensor) -> Tensor:
        y = self.dropout(self.attention_norm(x + attended))
        hidden = functional.gelu(self.dropout(self.expand(y)))
        out: Tensor = self.output_norm(y + self.dropout(self.contract(hidden)))
        return out

    def forward(self, x: Tensor, packing: Packing) -> Tensor:
        """Packed rows (rows, dim) to packed rows."""
        return self._finish(x, self.attention(x, packing))

    def cross(self, query: Tensor, x: Tensor, packing: Packing) -> Tensor:
        """Packed queries (sequences, dim), each over the packed rows of its sequence."""
        return self._finish(query, self.attention.cross(query, x, packing))

    def dense(self, query: Tensor, x: Tensor, allowed: Tensor) -> Tensor:
        """Padded queries (count, queries, dim) over padded rows; ``allowed`` (count, length) is False on padding."""
        return self._finish(query, self.attention.dense(query, x, allowed))
