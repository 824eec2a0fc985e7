"""Sums of exponentials over batch and queue, tile by tile, with their gradients.

Each anchor's loss depends on its row of logits alone, through the log of the summed positives and the log of the
summed negatives. So once a tile of rows is computed, its gradient is known: it is formed at once and the tile is
dropped. Memory is O(tile × columns), nothing of size N × N waits for the backward pass, and no product is computed
twice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

RowLoss = Callable[[Tensor, Tensor, slice], tuple[Tensor, Tensor, Tensor]]
"""(log positives, log negatives, rows) -> (sum of losses, its gradient by either argument)."""


@dataclass(frozen=True)
class Contrast:
    """What the anchors of one modality are compared with; constants only.

    Args:
        row_loss: turns the two logarithms of each anchor into its loss and derivatives.
        ids: (N,) rows with equal ids are never negatives; None: only the own index.
        inter_keep: (N,) rows of the other modality that serve as negatives; None: all.
        intra_keep: (N,) rows of the anchors' own modality that do; None: all.
        intra_bias: added to intra-modal logits (log λ), or None where there is no intra-modal term.
        intra_scale: multiplies intra-modal logits.
        zero_self: leave exp(0) for the own index in the intra-modal term.
        queue: (R, D) older rows of the anchors' own modality.
        queue_keep: (R,) which of them serve as negatives.
        queue_ids: (R,) their ids.
        extra: (N, k) further positives of each anchor among the batch, -1 for none.
        extra_bias: added to their logits (log β).
        bag: every row with the anchor's id is a positive.
        columns: the other modality's row i against this modality's batch gives further negatives (MIL-NCE).
        chunk_size: anchors computed at a time; None: all.
    """

    row_loss: RowLoss
    ids: Tensor | None = None
    inter_keep: Tensor | None = None
    intra_keep: Tensor | None = None
    intra_bias: float | None = None
    intra_scale: float = 1.0
    zero_self: bool = False
    queue: Tensor | None = None
    queue_keep: Tensor | None = None
    queue_ids: Tensor | None = None
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
    loss: Tensor = _Contrast.apply(x, y, scale, what)  # type: ignore[no-untyped-call]
    return loss


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
    def forward(ctx: Any, x: Tensor, y: Tensor, scale: Tensor, what: Contrast) -> Tensor:
        tiles = _Tiles(x, y, float(scale), what, any(ctx.needs_input_grad))
        step = what.chunk_size or len(x)
        for start in range(0, len(x), step):
            tiles.add(slice(start, min(start + step, len(x))))
        ctx.gradients = (tiles.grad_x, tiles.grad_y, tiles.grad_scale)
        return tiles.loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, y, scale = (
            None if not needed else grad * value
            for needed, value in zip(ctx.needs_input_grad[:3], ctx.gradients, strict=True)
        )
        return x, y, scale, None


@dataclass(frozen=True)
class _Block:
    """Columns of the logits that belong to one set of keys."""

    start: int
    keys: Tensor  # (keys, D)
    grad_keys: Tensor | None  # where their gradient goes; None for older rows
    factor: float = 1.0
    bias: float = 0.0
    keep: Tensor | None = None
    partner_asks: bool = False  # the anchor's partner is compared with the keys, not the anchor

    @property
    def stop(self) -> int:
        return self.start + len(self.keys)

    @property
    def columns(self) -> slice:
        return slice(self.start, self.stop)


class _Tiles:
    """Loss and gradients, accumulated over tiles of anchors."""

    def __init__(self, x: Tensor, y: Tensor, scale: float, what: Contrast, with_gradient: bool) -> None:
        self.x, self.y, self.scale, self.what, self.with_gradient = x, y, scale, what, with_gradient
        self.loss = x.new_zeros(())
        self.grad_x, self.grad_y = torch.zeros_like(x), torch.zeros_like(y)
        self.grad_scale = x.new_zeros(())
        size = len(x)
        self.blocks = [_Block(0, y, self.grad_y, keep=what.inter_keep)]
        if what.intra_bias is not None:
            scale_and_bias = (what.intra_scale, what.intra_bias)
            self.blocks.append(_Block(size, x, self.grad_x, *scale_and_bias, keep=what.intra_keep))
            if what.queue is not None:
                rows = what.queue.to(x.dtype)
                self.blocks.append(_Block(2 * size, rows, None, *scale_and_bias, keep=what.queue_keep))
        if what.columns:
            self.blocks.append(_Block(self.blocks[-1].stop, x, self.grad_x, partner_asks=True))
        self.width = self.blocks[-1].stop
        self.bias = self._column_bias()
        self.repeated = what.ids is not None and len(torch.unique(what.ids)) < len(what.ids)
        self.seen_before = self._queue_columns_with_batch_ids()

    def _column_bias(self) -> Tensor | None:
        if all(block.keep is None and block.bias == 0 for block in self.blocks):
            return None
        bias = self.x.new_zeros(self.width)
        for block in self.blocks:
            bias[block.columns] = block.bias
            if block.keep is not None:
                bias[block.columns].masked_fill_(~block.keep, -torch.inf)
        return bias

    def _queue_columns_with_batch_ids(self) -> Tensor | None:
        what = self.what
        if what.intra_bias is None or what.queue is None or what.ids is None or what.queue_ids is None:
            return None
        columns = torch.isin(what.queue_ids, what.ids)
        if what.queue_keep is not None:
            columns &= what.queue_keep
        index = columns.nonzero().flatten()
        return index if len(index) else None

    def add(self, rows: slice) -> None:
        """Loss of these anchors and what it gives to every gradient."""
        what, size = self.what, len(self.x)
        count = rows.stop - rows.start
        at = torch.arange(count, device=self.x.device)
        own = at + rows.start  # (rows,) column of each anchor's own index
        logits = self.x.new_empty(count, self.width)  # (rows, columns)
        for block in self.blocks:
            asking = (self.y if block.partner_asks else self.x)[rows] * (self.scale * block.factor)
            torch.mm(asking, block.keys.T, out=logits[:, block.columns])
        inter = logits[:, :size]

        same = None  # (rows, N) equal ids, only where some id is repeated
        if self.repeated and what.ids is not None:
            same = what.ids[rows].unsqueeze(1) == what.ids
        positives, shares = self._positives(inter, own, same)  # (rows,), and who has which share in them

        if self.bias is not None:
            logits += self.bias
        for block in self.blocks:
            if block.grad_keys is None:
                continue  # older rows
            if same is None:
                logits[at, block.start + own] = -torch.inf
            else:
                logits[:, block.columns].masked_fill_(same, -torch.inf)
        if self.seen_before is not None and what.ids is not None and what.queue_ids is not None:
            columns = self.seen_before + 2 * size
            repeated = what.ids[rows].unsqueeze(1) == what.queue_ids[self.seen_before]  # (rows, few)
            logits[:, columns] = logits[:, columns].masked_fill(repeated, -torch.inf)
        if what.zero_self and what.intra_bias is not None:
            logits[at, size + own] = what.intra_bias

        highest = logits.amax(dim=1, keepdim=True)
        highest.masked_fill_(highest == -torch.inf, 0)
        terms = logits.sub_(highest).exp_()  # (rows, columns)
        sums = terms.sum(dim=1)
        loss, slope_positives, slope_negatives = what.row_loss(positives, highest.squeeze(1) + sums.log(), rows)
        self.loss += loss
        if not self.with_gradient:
            return

        terms *= torch.where(sums > 0, slope_negatives / sums, 0).unsqueeze(1)  # now the gradient by the logits
        if what.zero_self and what.intra_bias is not None:
            terms[at, size + own] = 0
        self._add_positive_slopes(terms[:, :size], slope_positives, shares)
        self._add_gradients(terms, rows)

    def _positives(self, inter: Tensor, own: Tensor, same: Tensor | None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """(rows,) log of the summed positives, and each one's column and share in the sum."""
        what = self.what
        if what.bag and same is not None:
            index = torch.arange(inter.shape[1], device=inter.device).expand_as(inter)
            values = inter.masked_fill(~same, -torch.inf)
        else:
            index = own.unsqueeze(1)
            values = inter.gather(1, index)
            if what.extra is not None:
                extra = what.extra[own]  # (rows, k)
                index = torch.cat([index, extra.clamp(min=0)], dim=1)
                further = inter.gather(1, index[:, 1:]) + what.extra_bias
                values = torch.cat([values, further.masked_fill(extra < 0, -torch.inf)], dim=1)
        total = values.logsumexp(dim=1)
        return total, (index, (values - total.unsqueeze(1)).exp())

    def _add_positive_slopes(self, terms: Tensor, slopes: Tensor, shares: tuple[Tensor, Tensor]) -> None:
        index, share = shares
        terms.scatter_add_(1, index, share * slopes.unsqueeze(1))

    def _add_gradients(self, terms: Tensor, rows: slice) -> None:
        for block in self.blocks:
            slope = terms[:, block.columns]  # (rows, keys)
            asking, grad_asking = (self.y, self.grad_y) if block.partner_asks else (self.x, self.grad_x)
            pull = (slope @ block.keys).mul_(block.factor)  # (rows, D)
            self.grad_scale += torch.dot(pull.flatten(), asking[rows].flatten())
            grad_asking[rows] += pull.mul_(self.scale)
            if block.grad_keys is not None:
                block.grad_keys.addmm_(slope.T, asking[rows], alpha=self.scale * block.factor)
