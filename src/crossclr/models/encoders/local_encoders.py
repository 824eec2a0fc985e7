"""Local encoders: from the rows of a clip or a sentence to one vector."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from crossclr.features.ragged import Ragged
from crossclr.models.layers.attention import TransformerLayer
from crossclr.models.layers.dropout import Dropout, drop_rows
from crossclr.models.layers.initial_weights import initialise
from crossclr.models.layers.norm import CootNorm, build_input_norm
from crossclr.models.layers.packing import Packing
from crossclr.models.layers.pooling import build_pooler
from crossclr.models.layers.positions import Positions
from crossclr.models.model_config import MLPEncoderConfig, TransformerEncoderConfig


def _check(part: Ragged, expected: int) -> None:
    if len(part) == 0:
        raise ValueError("there are no sequences to encode; a batch needs at least one")
    if part.dim != expected:
        raise ValueError(f"the encoder was built for rows of {expected} channels, but these rows have {part.dim}")


class TransformerEncoder(nn.Module):
    """Input norm, projection, positions, transformer layers and pooler.

    Row-wise layers run on the rows of all sequences of the batch at once, without padding.
    """

    def __init__(self, config: TransformerEncoderConfig, input_dim: int, dim: int) -> None:
        super().__init__()
        self.input_dim = input_dim
        self.input_norm = build_input_norm(config.input_norm, input_dim)
        self.projection = nn.Linear(input_dim, dim)
        self.positions = Positions(dim)
        self.layers = nn.ModuleList(
            TransformerLayer(dim, config.heads, config.feed_forward or dim, config.dropout)
            for _ in range(config.layers)
        )
        self.pooler = build_pooler(config, dim)
        initialise(self, config.initial_weights)

    def forward(self, *sequences: Ragged) -> Tensor:
        """(sequences, dim) one vector per sequence; several Ragged are processed as one, in this order."""
        lengths = torch.cat([part.lengths for part in sequences])
        projected = []
        for part in sequences:
            _check(part, self.input_dim)
            projected.append(functional.gelu(self._project(part.values.to(self.projection.weight.dtype))))
        x = projected[0] if len(projected) == 1 else torch.cat(projected)  # (rows, dim)
        packing = Packing.of(lengths, x.device)
        x = self.positions(packing.pack(x), packing.positions, packing.groups[-1][1])
        for layer in self.layers:
            x = layer(x, packing)
        return packing.restore(self.pooler(x, packing))

    def _project(self, rows: Tensor) -> Tensor:
        if isinstance(self.input_norm, CootNorm):
            return self.input_norm.then(self.projection, rows)
        out: Tensor = self.projection(self.input_norm(rows))
        return out


class _Residual(nn.Module):
    def __init__(self, dim: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.expand = nn.Linear(dim, hidden)
        self.contract = nn.Linear(hidden, dim)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.dropout(functional.gelu(self.expand(self.norm(x))))
        out: Tensor = x + self.dropout(self.contract(hidden))
        return out


class MLPEncoder(nn.Module):
    """A residual MLP over one vector; a sequence is pooled to one vector first."""

    def __init__(self, config: MLPEncoderConfig, input_dim: int, dim: int) -> None:
        super().__init__()
        self.input_dim = input_dim
        self.sequence_pooling, self.row_dropout = config.sequence_pooling, config.row_dropout
        width = 2 * input_dim if config.sequence_pooling == "mean_max" else input_dim
        self.input_norm = build_input_norm(config.input_norm, width)
        self.input_dropout = Dropout(config.input_dropout)
        self.projection = nn.Linear(width, dim)
        self.blocks = nn.Sequential(
            *(_Residual(dim, config.hidden or 2 * dim, config.dropout) for _ in range(config.blocks))
        )

    def _pooled_before(self, part: Ragged) -> bool:
        """Whether the rows are already pooled to mean and maximum, as `MemorySource` does."""
        wide = self.sequence_pooling == "mean_max" and part.dim == 2 * self.input_dim
        return wide and len(part) == len(part.values)

    def _pool(self, part: Ragged) -> Tensor:
        """(sequences, width) one vector per sequence."""
        if self.training and self.row_dropout > 0:
            part = drop_rows(part, self.row_dropout)
        values = part.values.to(self.projection.weight.dtype)
        if int(part.lengths.max()) == 1:
            whole = self.sequence_pooling != "mean_max" or self._pooled_before(part)
            return values if whole else torch.cat([values, values], dim=1)
        packing = Packing.of(part.lengths, values.device)
        pooled = []
        for group in packing.split(packing.pack(values)):
            if self.sequence_pooling == "mean":
                pooled.append(group.mean(1))
            elif self.sequence_pooling == "max":
                pooled.append(group.amax(1))
            else:
                pooled.append(torch.cat([group.mean(1), group.amax(1)], dim=1))
        return packing.restore(torch.cat(pooled))

    def forward(self, *sequences: Ragged) -> Tensor:
        """(sequences, dim) one vector per sequence; several Ragged are processed as one, in this order."""
        for part in sequences:
            _check(part, part.dim if self._pooled_before(part) else self.input_dim)
        pooled = torch.cat([self._pool(part) for part in sequences])
        out: Tensor = self.blocks(self.projection(self.input_dropout(self.input_norm(pooled))))
        return out


def build_local_encoder(config: TransformerEncoderConfig | MLPEncoderConfig, input_dim: int, dim: int) -> nn.Module:
    """The local encoder of a config."""
    if isinstance(config, MLPEncoderConfig):
        return MLPEncoder(config, input_dim, dim)
    return TransformerEncoder(config, input_dim, dim)
