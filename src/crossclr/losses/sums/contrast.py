"""Sums of exponentials over batch and queue, tile by tile, with their gradients.

Each anchor's loss depends on its row of logits alone, through the log of the summed positives and the log of the
summed negatives. So once a tile of rows is computed, its gradient is known: it is formed at once and the tile is
dropped. Memory is O(tile × columns), nothing of size N × N waits for the backward pass, and no product is computed
twice. What happens between two products is done strip by strip of the tile's columns, as long as they are in the cache.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from crossclr.losses.sums.across_processes import current_sharing
from crossclr.losses.sums.tile_kernel import Tiles

RowLoss = Callable[[Tensor, Tensor, slice], tuple[Tensor, Tensor, Tensor]]
"""(log positives, log negatives, rows) -> (sum of losses, its gradient by either argument)."""


@dataclass(frozen=True)
class Identity:
    """Which samples are the same thing, found once for both modalities.

    Args:
        ids: (N,) ids of the batch.
        repeated: whether an id stands twice in the batch.
        queue_ids: (few,) ids of older rows that also stand in the batch.
        queue_rows: (few,) which rows of the queue these are; None where there are none.
    """

    ids: Tensor
    repeated: bool
    queue_ids: Tensor
    queue_rows: Tensor | None = None


def identify(ids: Tensor | None, queue_ids: Tensor | None = None, live: Tensor | None = None) -> Identity | None:
    """Compare ids within the batch and with the queue.

    Args:
        ids: (N,) ids of the batch, or None.
        queue_ids: (R,) ids of the rows of the queue.
        live: which rows of the queue are the batch itself.
    """
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


@dataclass(frozen=True)
class Contrast:
    """What the anchors of one modality are compared with; constants only.

    Args:
        row_loss: turns the two logarithms of each anchor into its loss and derivatives.
        same: rows with equal ids are never negatives; None: only the own index.
        inter_keep: (N,) rows of the other modality that serve as negatives; None: all.
        intra_keep: (N,) rows of the anchors' own modality that do; None: all.
        intra_bias: added to intra-modal logits (log λ), or None where there is no intra-modal term.
        intra_scale: multiplies intra-modal logits.
        zero_self: leave exp(0) for the own index in the intra-modal term.
        queue: (R, D) older rows of the anchors' own modality.
        queue_keep: (R,) which of them serve as negatives.
        older: the stretches of the queue that are not the batch itself, which takes part with its live rows; None: all.
        extra: (N, k) further positives of each anchor among the batch, -1 for none.
        extra_bias: added to their logits (log β).
        bag: every row with the anchor's id is a positive.
        columns: the other modality's row i against this modality's batch gives further negatives (MIL-NCE).
        chunk_size: anchors computed at a time; None: all.
    """

    row_loss: RowLoss
    same: Identity | None = None
    inter_keep: Tensor | None = None
    intra_keep: Tensor | None = None
    intra_bias: float | None = None
    intra_scale: float = 1.0
    zero_self: bool = False
    queue: Tensor | None = None
    queue_keep: Tensor | None = None
    older: tuple[slice, ...] | None = None
    extra: Tensor | None = None
    extra_bias: float = 0.0
    bag: bool = False
    columns: bool = False
    chunk_size: int | None = None


def contrast(x: Tensor, y: Tensor, scale: Tensor, what: Contrast) -> Tensor:
    """Loss of the anchors ``x`` with positives ``y``, differentiable once by ``x``, ``y`` and ``scale``.

    Args:
        x: (N, D) unit embeddings of the anchors.
        y: (N, D) unit embeddings of the other modality; row i is the positive of anchor i.
        scale: scalar, one over the temperature.
        what: the negatives, further positives and the loss of a row.

    Returns:
        Scalar, the sum of the anchors' losses.
    """
    return contrast_and_share(x, y, scale, what)[0]


def contrast_and_share(x: Tensor, y: Tensor, scale: Tensor, what: Contrast) -> tuple[Tensor, Tensor]:
    """The same, with the share of the denominator that is intra-modal: its mean over the anchors."""
    found: tuple[Tensor, Tensor] = _Contrast.apply(x, y, scale, what)  # type: ignore[no-untyped-call]
    return found


def softmax_rows(weights: Tensor) -> RowLoss:
    """-log(positives / (positives + negatives)) of each row, times its weight.

    Args:
        weights: (N,) weights that sum to 1.
    """

    def rows_loss(positives: Tensor, negatives: Tensor, rows: slice) -> tuple[Tensor, Tensor, Tensor]:
        gap = negatives - positives  # (rows,) -inf where nothing is contrasted
        slope = weights[rows] * torch.sigmoid(gap)
        return torch.dot(weights[rows], torch.logaddexp(gap, torch.zeros_like(gap))), -slope, slope

    return rows_loss


class _Contrast(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, scale: Tensor, what: Contrast) -> tuple[Tensor, Tensor]:
        sharing = current_sharing()
        needed = any(ctx.needs_input_grad)
        first, last = 0, len(x)
        if sharing is not None:
            needed, (first, last) = sharing.anyone(needed, x.device), sharing.part(len(x))
        tiles = Tiles(x, y, float(scale), what, needed)
        step = what.chunk_size or len(x)
        for start in range(first, last, step):
            tiles.add(slice(start, min(start + step, last)))
        if sharing is not None:
            sharing.add_up(
                tiles.loss, tiles.intra_share, *((tiles.grad_x, tiles.grad_y, tiles.grad_scale) if needed else ())
            )
        ctx.gradients = (tiles.grad_x, tiles.grad_y, tiles.grad_scale)
        ctx.mark_non_differentiable(tiles.intra_share)
        return tiles.loss, tiles.intra_share

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        x, y, scale = (
            None if not needed else grad * value
            for needed, value in zip(ctx.needs_input_grad[:3], ctx.gradients, strict=True)
        )
        return x, y, scale, None
