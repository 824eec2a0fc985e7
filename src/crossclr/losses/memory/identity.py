"""Which samples are the same item: equal ids within the batch, and between batch and queue."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Identity:
    """Rows that must not be negatives of each other."""

    ids: Tensor  # (N,) ids of the batch
    repeated: bool  # whether an id occurs twice in the batch
    queue_ids: Tensor  # (few,) ids of older rows that also occur in the batch
    queue_rows: Tensor | None = None  # (few,) which rows of the queue these are; None if there are none

    def within(self, rows: slice) -> Tensor | None:
        """(rows, N) equal ids in the batch; None if no id is repeated."""
        return self.ids[rows].unsqueeze(1) == self.ids if self.repeated else None


def identify(ids: Tensor | None, queue_ids: Tensor | None = None, live: Tensor | None = None) -> Identity | None:
    """Compare ids (N,) within the batch and with the queue (R,), whose ``live`` rows belong to the batch."""
    if ids is None:
        return None
    ordered = ids.sort().values
    repeated = bool((ordered[1:] == ordered[:-1]).any())
    if queue_ids is None:
        return Identity(ids, repeated, ids[:0])
    place = torch.searchsorted(ordered, queue_ids).clamp_(max=len(ids) - 1)
    again = ordered[place] == queue_ids  # (R,)
    if live is not None:
        again[live] = False
    rows = again.nonzero().flatten()
    return Identity(ids, repeated, queue_ids[rows], rows) if len(rows) else Identity(ids, repeated, ids[:0])
