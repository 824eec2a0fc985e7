"""Sentences without padding: layers work on valid positions only, and only attention uses a padded rectangle."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Layout:
    """The positions of the rows of a packed batch."""

    valid: Tensor  # (sentences, length) positions that are not padding; the video part, then the text part
    index: Tensor  # (rows,) place of each packed row among all sentences · length positions
    allowed: Tensor  # (sentences, 1, length, length) which position may see which
    video_rows: Tensor  # packed rows of the video part
    video_owner: Tensor  # the sentence of each of them
    video_length: int  # positions of the video part

    @classmethod
    def of(cls, video: Tensor, text: Tensor) -> Layout:
        """From the valid positions (sentences, positions) of the video part and of the text part."""
        rows = video.shape[1]
        valid = torch.cat([video, text], dim=1)
        place = torch.arange(valid.shape[1], device=valid.device)
        # every position sees the video part; words also see themselves and earlier words
        order = (place < rows) | ((place <= place.unsqueeze(1)) & (place.unsqueeze(1) >= rows))
        index = valid.flatten().nonzero().squeeze(1)
        video_rows = (index % valid.shape[1] < rows).nonzero().squeeze(1)
        owner = index[video_rows] // valid.shape[1]
        return cls(valid, index, valid[:, None, None, :] & order, video_rows, owner, rows)

    def pack(self, x: Tensor) -> Tensor:
        """(sentences, length, ...) to (rows, ...)."""
        return x.flatten(0, 1).index_select(0, self.index)

    def pad(self, x: Tensor) -> Tensor:
        """(rows, channels) to (sentences, length, channels), zeros elsewhere."""
        sentences, length = self.valid.shape
        flat = x.new_zeros(sentences * length, x.shape[1]).index_copy(0, self.index, x)
        return flat.view(sentences, length, -1)

    def video_mean(self, x: Tensor) -> Tensor:
        """The mean of the video part of each sentence: (rows, channels) to (sentences, channels)."""
        sums = x.new_zeros(len(self.valid), x.shape[1]).index_add(0, self.video_owner, x[self.video_rows])
        counts = self.valid[:, : self.video_length].sum(1, keepdim=True)
        return sums / counts
