"""Multi-head attention and the post-norm transformer layer, on packed rows."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from crossclr.models.layers.dropout import Dropout
from crossclr.models.layers.norm import CootNorm
from crossclr.models.layers.packing import Packing


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
    """

    def __init__(self, dim: int, heads: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.attention = Attention(dim, heads, dropout)
        self.attention_norm = CootNorm(dim)
        self.expand = nn.Linear(dim, hidden)
        self.contract = nn.Linear(hidden, dim)
        self.output_norm = CootNorm(dim)
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
