"""The global encoder: one vector per video from its clips and the whole video as context."""

import torch
from torch import Tensor, nn

from crossclr.models.layers.attention import TransformerLayer
from crossclr.models.layers.initial_weights import initialise
from crossclr.models.layers.norm import CootNorm
from crossclr.models.layers.packing import Packing
from crossclr.models.layers.pooling import MeanPool
from crossclr.models.layers.positions import Positions
from crossclr.models.model_config import GlobalEncoderConfig


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
