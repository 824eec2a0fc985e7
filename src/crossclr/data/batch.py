"""Batches: what the model and the loss get. Sequences of different lengths lie end to end, without padding."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


@dataclass(frozen=True)
class Ragged:
    """Sequences of different lengths, stored end to end.

    Args:
        values: (total rows, dim) the rows of all sequences, one after the other.
        lengths: (sequences,) int64 rows of each sequence, on the CPU; at least 1.

    Example:
        >>> import torch
        >>> clips = Ragged.from_list([torch.ones(2, 3), torch.zeros(1, 3)])
        >>> len(clips), clips.dim, clips.lengths.tolist()
        (2, 3, [2, 1])
        >>> clips.mean()[0].tolist()
        [1.0, 1.0, 1.0]
    """

    values: Tensor
    lengths: Tensor

    def __post_init__(self) -> None:
        if self.values.ndim != 2:
            raise ValueError(f"Ragged values must be (total rows, dim), got shape {tuple(self.values.shape)}")
        if self.lengths.ndim != 1 or self.lengths.dtype != torch.int64 or self.lengths.device.type != "cpu":
            raise ValueError("Ragged lengths must be a one-dimensional int64 tensor on the CPU")
        if self.lengths.numel() and int(self.lengths.min()) < 1:
            raise ValueError(f"sequence {int(self.lengths.argmin())} has no rows; every sequence needs at least one")
        if int(self.lengths.sum()) != self.values.shape[0]:
            raise ValueError(f"lengths sum to {int(self.lengths.sum())} but there are {self.values.shape[0]} rows")

    @classmethod
    def from_list(cls, sequences: Iterable[Tensor | npt.NDArray[np.floating]]) -> "Ragged":
        """Join (rows, dim) arrays or tensors with the same dim."""
        parts = list(sequences)
        lengths = torch.tensor([len(part) for part in parts], dtype=torch.int64)
        if all(isinstance(part, np.ndarray) for part in parts):  # one copy, also of arrays that are read-only
            return cls(torch.from_numpy(np.concatenate(parts)), lengths)
        return cls(torch.cat([torch.as_tensor(part) for part in parts]), lengths)

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def dim(self) -> int:
        """Channels of a row."""
        return self.values.shape[1]

    @cached_property
    def offsets(self) -> Tensor:
        """(sequences + 1,) start of each sequence, and the end of the last one."""
        return torch.cat([torch.zeros(1, dtype=torch.int64), self.lengths.cumsum(0)])

    @cached_property
    def owners(self) -> Tensor:
        """(total rows,) the sequence of each row, on the device of the values."""
        return torch.repeat_interleave(torch.arange(len(self)), self.lengths).to(self.values.device)

    def split(self) -> list[Tensor]:
        """The sequences as a list of (rows, dim) views."""
        return list(torch.split(self.values, self.lengths.tolist()))

    def select(self, indices: Sequence[int] | Tensor) -> "Ragged":
        """The sequences with these indices, in this order."""
        index = torch.as_tensor(indices, dtype=torch.int64)
        lengths = self.lengths[index]
        starts = self.offsets[:-1][index]
        within = torch.arange(int(lengths.sum())) - torch.repeat_interleave(lengths.cumsum(0) - lengths, lengths)
        rows = torch.repeat_interleave(starts, lengths) + within
        return Ragged(self.values[rows.to(self.values.device)], lengths)

    def mean(self) -> Tensor:
        """(sequences, dim) the mean row of each sequence."""
        sums = self.values.new_zeros(len(self), self.dim).index_add_(0, self.owners, self.values)
        return sums / self.lengths.to(self.values.device, self.values.dtype).unsqueeze(1)

    def to(self, device: torch.device | str, dtype: torch.dtype | None = None) -> "Ragged":
        """Values on another device (and dtype); lengths stay on the CPU, where batches are planned."""
        return Ragged(self.values.to(device, dtype, non_blocking=True), self.lengths)


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
        keys: (videos) the key of each video in its data set.
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
