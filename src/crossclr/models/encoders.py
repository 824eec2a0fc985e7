"""Local encoders: from the rows of a clip or a sentence to one vector.

The global encoder: one vector per video from its clips and the whole video as context.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from crossclr.data.batch import Ragged
from crossclr.models.layers import MeanPool, Positions, TransformerLayer, build_pooler, initialise
from crossclr.models.model_config import (
    ExpertsEncoderConfig,
    GlobalEncoderConfig,
    MLPEncoderConfig,
    TransformerEncoderConfig,
)
from crossclr.models.norm import CootNorm, build_input_norm
from crossclr.models.packing import Dropout, Packing, drop_rows


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
        """Whether the rows are already pooled to mean and maximum, as `Dataset.pooled` does."""
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


def build_local_encoder(
    config: TransformerEncoderConfig | MLPEncoderConfig | ExpertsEncoderConfig, input_dim: int, dim: int
) -> nn.Module:
    """The local encoder of a config."""
    if isinstance(config, ExpertsEncoderConfig):
        from crossclr.models.experts import ExpertsEncoder  # it is built of these encoders

        return ExpertsEncoder(config, input_dim, dim)
    if isinstance(config, MLPEncoderConfig):
        return MLPEncoder(config, input_dim, dim)
    return TransformerEncoder(config, input_dim, dim)


class GlobalEncoder(nn.Module):
    """Self-attention over the clips, cross-attention from the context; both results are joined.

    Args:
        dim: channels of a clip embedding; the result has twice as many.
    """

    def __init__(self, config: GlobalEncoderConfig, dim: int) -> None:
        super().__init__()
        self.pool = config.pool
        hidden = config.feed_forward or dim
        self.input_norm = CootNorm(dim)
        self.positions = Positions(dim)
        self.layers = nn.ModuleList(
            TransformerLayer(dim, config.heads, hidden, config.dropout) for _ in range(config.layers)
        )
        self.context_layer = TransformerLayer(dim, config.heads, hidden, config.dropout)
        self.mean = MeanPool()
        initialise(self, config.initial_weights)

    def forward(self, clips: Tensor, context: Tensor, clip_counts: Tensor) -> Tensor:
        """(videos, 2 dim) from ``clips`` (clips, dim), ``context`` (videos, dim) and ``clip_counts`` (videos,)."""
        if len(clip_counts) != len(context) or int(clip_counts.sum()) != len(clips):
            raise ValueError(
                f"clip_counts names {len(clip_counts)} videos with {int(clip_counts.sum())} clips, "
                f"but there are {len(context)} contexts and {len(clips)} clips"
            )
        if self.pool == "coot_sum":
            return self._padded(clips, context, clip_counts)
        packing = Packing.of(clip_counts, clips.device)
        x = self.positions(packing.pack(self.input_norm(clips)), packing.positions, packing.groups[-1][1])
        for layer in self.layers:
            x = layer(x, packing)
        attended = self.context_layer.cross(packing.pack_sequences(context), x, packing)
        return packing.restore(torch.cat([self.mean(x, packing), attended], dim=1))

    def _padded(self, clips: Tensor, context: Tensor, clip_counts: Tensor) -> Tensor:
        """COOT's way: padded positions pass through all layers as queries and are summed with the others."""
        videos, longest = len(clip_counts), int(clip_counts.max())
        allowed = (torch.arange(longest) < clip_counts.unsqueeze(1)).to(clips.device)  # (videos, longest)
        x = clips.new_zeros(videos, longest, clips.shape[1])
        x = x.masked_scatter(allowed.unsqueeze(2), clips)
        x = self.input_norm(x).flatten(0, 1)
        places = torch.arange(longest, device=clips.device).repeat(videos)
        x = self.positions(x, places, longest).unflatten(0, (videos, longest))
        for layer in self.layers:
            x = layer.dense(x, x, allowed)  # type: ignore[operator]
        attended = self.context_layer.dense(context.unsqueeze(1), x, allowed).squeeze(1)
        pooled = x.sum(1) / clip_counts.to(x.device, x.dtype).unsqueeze(1)
        return torch.cat([pooled, attended], dim=1)
