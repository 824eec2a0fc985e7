"""A batch: what the model and the loss get."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from crossclr.features.ragged import Ragged


@dataclass(frozen=True)
class Inputs:
    """What an encoder reads: the rows of one modality.

    Args:
        clips: the clips (or sentences) that have the modality, flat, in video order and then clip order.
        context: the rows of each whole video (or paragraph) that has it; None for one-level data.
    """

    clips: Ragged
    context: Ragged | None = None

    def to(self, device: torch.device | str) -> "Inputs":
        """The same rows on another device."""
        return Inputs(self.clips.to(device), None if self.context is None else self.context.to(device))


@dataclass(frozen=True)
class Batch:
    """Several modalities of the same videos. A clip may lack some of them.

    Args:
        inputs: by modality, the rows of the clips that have it.
        present: by modality, (clips,) booleans on the CPU: which clips have it.
        pooled: by modality, (clips, D) mean input row of each clip, on which connectivity is measured; zeros for
            clips that lack the modality.
        clip_counts: (videos,) int64 on the CPU, clips of each video; all ones for one-level data.
        ids: (clips,) int64; clips with equal ids are the same thing and never negatives of each other.
        video_ids: (videos,) int64, the same for whole videos.
        keys: (videos) the key of each video in its source.
        pooled_context: by modality, (videos, D) mean input row of each whole video; empty for one-level data.
    """

    inputs: Mapping[str, Inputs]
    present: Mapping[str, Tensor]
    pooled: Mapping[str, Tensor]
    clip_counts: Tensor
    ids: Tensor
    video_ids: Tensor
    keys: tuple[str, ...]
    pooled_context: Mapping[str, Tensor] = field(default_factory=dict)

    def present_counts(self, modality: str) -> Tensor:
        """(videos,) on the CPU: how many clips of each video have a modality."""
        mask = self.present[modality]
        if bool(mask.all()):
            return self.clip_counts
        owner = torch.repeat_interleave(torch.arange(len(self.clip_counts)), self.clip_counts)
        return torch.bincount(owner[mask], minlength=len(self.clip_counts))

    def present_videos(self) -> dict[str, Tensor]:
        """By modality, (videos,) booleans on the CPU: which videos have it."""
        return {name: self.present_counts(name) > 0 for name in self.present}

    def to(self, device: torch.device | str) -> "Batch":
        """The same batch on another device; counts and presence stay on the CPU."""

        def move(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
            return {name: tensor.to(device, non_blocking=True) for name, tensor in tensors.items()}

        return replace(
            self,
            inputs={name: rows.to(device) for name, rows in self.inputs.items()},
            pooled=move(self.pooled),
            ids=self.ids.to(device, non_blocking=True),
            video_ids=self.video_ids.to(device, non_blocking=True),
            pooled_context=move(self.pooled_context),
        )


def spread(rows: Tensor, present: Tensor) -> Tensor:
    """Put the rows of those that are present at their places; the other places are zeros."""
    if bool(present.all()):
        return rows
    return rows.new_zeros(len(present), rows.shape[1]).index_copy(0, present.nonzero().ravel().to(rows.device), rows)
