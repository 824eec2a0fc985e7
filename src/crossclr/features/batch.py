"""A batch: what the model and the loss get."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from crossclr.features.ragged import Ragged


@dataclass(frozen=True)
class Side:
    """One modality of a batch.

    Args:
        clips: the clips (or sentences) of all videos, flat, in video order and then clip order.
        context: the rows of each whole video (or paragraph); None for one-level data.
    """

    clips: Ragged
    context: Ragged | None = None

    def to(self, device: torch.device | str) -> Side:
        """The same side on another device."""
        return Side(self.clips.to(device), None if self.context is None else self.context.to(device))


@dataclass(frozen=True)
class Batch:
    """Two modalities of the same videos; clip i of one belongs to clip i of the other.

    Args:
        a: first modality (video, image, audio, ...).
        b: second modality (usually text).
        pooled_a: (clips, Da) mean input row of each clip of A, on which connectivity is measured.
        pooled_b: (clips, Db) the same for B.
        clip_counts: (videos,) int64 on the CPU, clips of each video; all ones for one-level data.
        ids: (clips,) int64; clips with equal ids are the same thing and never negatives of each other.
        video_ids: (videos,) int64, the same for whole videos.
        keys: (videos) the key of each video in its source.
        pooled_context_a: (videos, Da) mean input row of each whole video, or None.
        pooled_context_b: (videos, Db) the same for B.
    """

    a: Side
    b: Side
    pooled_a: Tensor
    pooled_b: Tensor
    clip_counts: Tensor
    ids: Tensor
    video_ids: Tensor
    keys: tuple[str, ...]
    pooled_context_a: Tensor | None = None
    pooled_context_b: Tensor | None = None

    def to(self, device: torch.device | str) -> Batch:
        """The same batch on another device; counts stay on the CPU."""

        def move(tensor: Tensor | None) -> Tensor | None:
            return None if tensor is None else tensor.to(device, non_blocking=True)

        return Batch(
            a=self.a.to(device),
            b=self.b.to(device),
            pooled_a=self.pooled_a.to(device, non_blocking=True),
            pooled_b=self.pooled_b.to(device, non_blocking=True),
            clip_counts=self.clip_counts,
            ids=self.ids.to(device, non_blocking=True),
            video_ids=self.video_ids.to(device, non_blocking=True),
            keys=self.keys,
            pooled_context_a=move(self.pooled_context_a),
            pooled_context_b=move(self.pooled_context_b),
        )
