"""Sums of exponentials over batch and queue, tile by tile, with their gradients.

Each anchor's loss depends on its row of logits alone, through the log of the summed positives and the log of the
summed negatives. So once a tile of rows is computed, its gradient is known: it is formed at once and the tile is
dropped. Memory is O(tile × columns), nothing of size N × N waits for the backward pass, and no product is computed
twice.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from crossclr.losses.sharing import current_sharing

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
        sharing = current_sharing()
        needed = any(ctx.needs_input_grad)
        first, last = 0, len(x)
        if sharing is not None:
            needed, (first, last) = sharing.anyone(needed, x.device), sharing.part(len(x))
        tiles = _Tiles(x, y, float(scale), what, needed)
        step = what.chunk_size or len(x)
        for start in range(first, last, step):
            tiles.add(slice(start, min(start + step, last)))
        if sharing is not None:
            sharing.add_up(tiles.loss, *((tiles.grad_x, tiles.grad_y, tiles.grad_scale) if needed else ()))
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


class _Block:
    """One set of keys that the anchors are compared with.

    Args:
        keys: (keys, D) unit rows.
        grad_keys: where their gradient goes; None for older rows.
        keep: (keys,) which of them serve as negatives; None: all.
        factor: multiplies the logits.
        weight: multiplies the exponentials.
        partner_asks: the anchors' partners are compared with the keys, not the anchors.
    """

    def __init__(
        self,
        keys: Tensor,
        grad_keys: Tensor | None,
        keep: Tensor | None = None,
        factor: float = 1.0,
        weight: float = 1.0,
        partner_asks: bool = False,
    ) -> None:
        self.keys, self.grad_keys, self.factor, self.partner_asks = keys, grad_keys, factor, partner_asks
        self.mask: Tensor | None = None  # (keys,) 0, or -inf for who is no negative
        self.weights: Tensor | float = weight  # (keys,) or one for all
        if keep is not None:
            self.mask = torch.zeros(len(keys), dtype=keys.dtype, device=keys.device).masked_fill_(~keep, -torch.inf)
            self.weights = keep.to(keys.dtype) * weight


class _Tiles:
    """Loss and gradients, accumulated over tiles of anchors."""

    def __init__(self, x: Tensor, y: Tensor, scale: float, what: Contrast, with_gradient: bool) -> None:
        self.x, self.y, self.scale, self.what, self.with_gradient = x, y, scale, what, with_gradient
        self.loss = x.new_zeros(())
        self.grad_x, self.grad_y = torch.zeros_like(x), torch.zeros_like(y)
        self.grad_scale = x.new_zeros(())
        self.blocks = [_Block(y, self.grad_y, what.inter_keep)]
        if what.intra_bias is not None:
            factor, weight = what.intra_scale, math.exp(what.intra_bias)
            self.blocks.append(_Block(x, self.grad_x, what.intra_keep, factor, weight))
            if what.queue is not None:
                self.blocks.append(_Block(what.queue.to(x.dtype), None, what.queue_keep, factor, weight))
        if what.columns:
            self.blocks.append(_Block(x, self.grad_x, partner_asks=True))
        self.lowest = math.log(torch.finfo(x.dtype).tiny) + 1

    def add(self, rows: slice) -> None:
        """Loss of these anchors and what it gives to every gradient."""
        what = self.what
        own = torch.arange(rows.start, rows.stop, device=self.x.device)  # (rows,) each anchor's own index
        tiles = []  # for each block (rows, keys): logits, then exponentials, then the gradient by the logits
        for block in self.blocks:
            asking = (self.y if block.partner_asks else self.x)[rows] * (self.scale * block.factor)
            tiles.append(asking @ block.keys.T)
        same = None  # (rows, N) equal ids, only where some id is repeated
        if what.same is not None and what.same.repeated:
            same = what.same.ids[rows].unsqueeze(1) == what.same.ids
        positives, shares = self._positives(tiles[0], own, same)  # (rows,), and who has which share in them

        for block, tile in zip(self.blocks, tiles, strict=True):
            if block.mask is not None:
                tile += block.mask
        self._hide(tiles, rows, own, same, -torch.inf)
        own_bias = what.intra_bias if what.zero_self else None
        if own_bias is not None:
            tiles[1][own - rows.start, own] = 0
        highest = torch.stack([tile.amax(dim=1) for tile in tiles]).amax(dim=0)  # (rows,)
        highest.masked_fill_(highest == -torch.inf, 0)
        for block, tile in zip(self.blocks, tiles, strict=True):
            # The exponential is several times slower where it meets -inf or gives a subnormal number, hence the floor.
            tile.sub_(highest.unsqueeze(1)).clamp_(min=self.lowest).exp_()
            if block.mask is not None or block.weights != 1.0:
                tile *= block.weights
        self._hide(tiles, rows, own, same, 0.0)
        if own_bias is not None:
            tiles[1][own - rows.start, own] = (own_bias - highest).exp()
        sums = torch.stack([tile.sum(dim=1) for tile in tiles]).sum(dim=0)  # (rows,)
        loss, slope_positives, slope_negatives = what.row_loss(positives, highest + sums.log(), rows)
        self.loss += loss
        if not self.with_gradient:
            return

        slopes = torch.where(sums > 0, slope_negatives / sums, 0).unsqueeze(1)
        for tile in tiles:
            tile *= slopes
        if own_bias is not None:
            tiles[1][own - rows.start, own] = 0
        index, share = shares
        tiles[0].scatter_add_(1, index, share * slope_positives.unsqueeze(1))
        self._add_gradients(tiles, rows)

    def _hide(self, tiles: list[Tensor], rows: slice, own: Tensor, same: Tensor | None, value: float) -> None:
        """Give the value to everyone who is the anchor itself or has its id."""
        known = self.what.same
        for block, tile in zip(self.blocks, tiles, strict=True):
            if block.grad_keys is None:  # older rows
                if known is not None and known.queue_rows is not None:
                    again = torch.eq(known.ids[rows].unsqueeze(1), known.queue_ids)  # (rows, few)
                    tile[:, known.queue_rows] = tile[:, known.queue_rows].masked_fill(again, value)
            elif same is None:
                tile[own - rows.start, own] = value
            else:
                tile.masked_fill_(same, value)

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

    def _add_gradients(self, tiles: list[Tensor], rows: slice) -> None:
        for block, slope in zip(self.blocks, tiles, strict=True):
            asking, grad_asking = (self.y, self.grad_y) if block.partner_asks else (self.x, self.grad_x)
            pull = (slope @ block.keys).mul_(block.factor)  # (rows, D)
            self.grad_scale += torch.dot(pull.flatten(), asking[rows].flatten())
            grad_asking[rows] += pull.mul_(self.scale)
            if block.grad_keys is not None:
                block.grad_keys.addmm_(slope.T, asking[rows], alpha=self.scale * block.factor)
