"""Sequences without padding: the container for clips, sentences, frames and tokens."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
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
        tensors = [torch.as_tensor(sequence) for sequence in sequences]
        return cls(torch.cat(tensors), torch.tensor([len(t) for t in tensors], dtype=torch.int64))

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
