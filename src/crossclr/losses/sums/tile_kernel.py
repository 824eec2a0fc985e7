"""The inside of a tile: logits of some anchors with all keys, their sums, and what they give to every gradient.

Between two matrix products a logit is masked, shifted, exponentiated, weighted and summed. This is done strip by strip
of the tile's columns, so that a strip is read from memory once and not ten times.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from crossclr.losses.sums.contrast import Contrast

STRIP = 1 << 19  # logits that are worked on at a time


class Block:
    """One set of keys that the anchors are compared with.

    Args:
        keys: (keys, D) unit rows.
        grad_keys: where their gradient goes; None for older rows.
        keep: (keys,) which of them serve as negatives; None: all.
        factor: multiplies the logits.
        weight: multiplies the exponentials.
        intra: the keys are of the anchors' own modality.
        partner_asks: the anchors' partners are compared with the keys, not the anchors.
        start: for older rows, where the keys begin in the queue.
    """

    def __init__(
        self,
        keys: Tensor,
        grad_keys: Tensor | None,
        keep: Tensor | None = None,
        factor: float = 1.0,
        weight: float = 1.0,
        intra: bool = False,
        partner_asks: bool = False,
        start: int = 0,
    ) -> None:
        self.keys, self.grad_keys, self.factor, self.partner_asks = keys, grad_keys, factor, partner_asks
        self.start, self.intra = start, intra
        self.mask: Tensor | None = None  # (keys,) 0, or -inf for who is no negative
        self.weights: Tensor | float = weight  # (keys,) or one for all
        if keep is not None:
            self.mask = torch.zeros(len(keys), dtype=keys.dtype, device=keys.device).masked_fill_(~keep, -torch.inf)
            self.weights = keep.to(keys.dtype) * weight


@dataclass(frozen=True)
class Strip:
    """Some columns of one block's tile."""

    block: Block
    columns: slice
    part: Tensor  # (rows, columns): logits, then exponentials, then the gradient by the logits
    zero_self: bool  # whether exp(0) stands for the own index here


@dataclass(frozen=True)
class Positives:
    """The positives of a tile's anchors: a few columns of the other modality for each, or (a bag) any of them.

    Args:
        total: (rows,) log of their sum.
        index: (rows, k) their columns; None: all.
        share: (rows, k) or (rows, N) the share of each in the sum.
    """

    total: Tensor
    index: Tensor | None
    share: Tensor


class Tiles:
    """Loss and gradients, accumulated over tiles of anchors."""

    def __init__(self, x: Tensor, y: Tensor, scale: float, what: Contrast, with_gradient: bool) -> None:
        self.x, self.y, self.scale, self.what, self.with_gradient = x, y, scale, what, with_gradient
        self.loss, self.intra_share = x.new_zeros(()), x.new_zeros(())
        self.grad_x, self.grad_y = torch.zeros_like(x), torch.zeros_like(y)
        self.grad_scale = x.new_zeros(())
        self.blocks = [Block(y, self.grad_y, what.inter_keep)]
        if what.intra_bias is not None:
            factor, weight = what.intra_scale, math.exp(what.intra_bias)
            self.blocks.append(Block(x, self.grad_x, what.intra_keep, factor, weight, intra=True))
            if what.queue is not None:
                for part in (slice(0, len(what.queue)),) if what.older is None else what.older:
                    keep = None if what.queue_keep is None else what.queue_keep[part]
                    keys = what.queue[part].to(x.dtype)
                    self.blocks.append(Block(keys, None, keep, factor, weight, intra=True, start=part.start))
        if what.columns:
            self.blocks.append(Block(x, self.grad_x, partner_asks=True))
        self.own_bias = what.intra_bias or 0.0
        self.lowest = math.log(torch.finfo(x.dtype).tiny) + 1
        rows = min(what.chunk_size or len(x), len(x))
        self._space = [x.new_empty(rows, len(block.keys)) for block in self.blocks]

    def add(self, rows: slice) -> None:
        """Loss of these anchors and what it gives to every gradient."""
        what, count = self.what, rows.stop - rows.start
        same = None  # (rows, N) equal ids, only where some id is repeated
        if what.same is not None and what.same.repeated:
            same = what.same.ids[rows].unsqueeze(1) == what.same.ids
        strips = self._strips(count)
        bag = what.bag and same is not None
        positives = None if bag else self._few_positives(rows)
        peaks = []
        scaled: dict[tuple[bool, float], Tensor] = {}  # (rows, D) what asks, times its scale
        for strip in strips:
            block = strip.block
            asking = scaled.get((block.partner_asks, block.factor))
            if asking is None:
                asking = (self.y if block.partner_asks else self.x)[rows] * (self.scale * block.factor)
                scaled[block.partner_asks, block.factor] = asking
            torch.mm(asking, block.keys[strip.columns].T, out=strip.part)
            if bag:
                continue  # the positives are read from the logits before anything is hidden
            peaks.append(self._peak(strip, rows, same))
        if positives is None:
            positives = self._bag(self._space[0][:count], same)
            peaks = [self._peak(strip, rows, same) for strip in strips]
        highest = torch.stack(peaks).amax(dim=0)  # (rows,)
        highest.masked_fill_(highest == -torch.inf, 0)
        sums, intra_sums = torch.zeros_like(highest), torch.zeros_like(highest)
        for strip in strips:
            part, weights = strip.part, strip.block.weights
            # The exponential is several times slower where it meets -inf or gives a subnormal number, hence the floor.
            part.sub_(highest.unsqueeze(1)).clamp_(min=self.lowest).exp_()
            if isinstance(weights, Tensor):
                part *= weights[strip.columns]
            elif weights != 1.0:
                part *= weights
            self._hide(strip, rows, same, 0.0)
            if strip.zero_self:
                _own(strip, rows, lambda own, here: own.copy_((self.own_bias - highest[here]).exp()))
            of_strip = part.sum(dim=1)
            sums += of_strip
            if strip.block.intra:
                intra_sums += of_strip
        loss, slope_positives, slope_negatives = what.row_loss(positives.total, highest + sums.log(), rows)
        self.loss += loss
        denominators = sums + (positives.total - highest).exp()
        self.intra_share += (intra_sums / denominators).sum() / len(self.x)
        if not self.with_gradient:
            return
        slopes = torch.where(sums > 0, slope_negatives / sums, 0).unsqueeze(1)
        pulled = positives.share * slope_positives.unsqueeze(1)
        if positives.index is not None:
            self._pull_few(rows, positives.index, pulled)
        for strip in strips:
            strip.part.mul_(slopes)
            if strip.zero_self:
                _own(strip, rows, lambda own, here: own.zero_())
            if positives.index is None and strip.block is self.blocks[0]:
                strip.part.add_(pulled[:, strip.columns])
            self._pull(strip, rows)

    def _strips(self, count: int) -> list[Strip]:
        """The tiles of all blocks for so many anchors, cut into columns."""
        width = max(STRIP // count, 64)
        return [
            Strip(block, columns, space[:count, columns], self.what.zero_self and number == 1)
            for number, (block, space) in enumerate(zip(self.blocks, self._space, strict=True))
            for start in range(0, len(block.keys), width)
            for columns in (slice(start, min(start + width, len(block.keys))),)
        ]

    def _peak(self, strip: Strip, rows: slice, same: Tensor | None) -> Tensor:
        """(rows,) the largest logit of a strip, after all that are no negatives were hidden."""
        if strip.block.mask is not None:
            strip.part.add_(strip.block.mask[strip.columns])
        self._hide(strip, rows, same, -torch.inf)
        if strip.zero_self:
            _own(strip, rows, lambda own, here: own.zero_())
        return strip.part.amax(dim=1)

    def _hide(self, strip: Strip, rows: slice, same: Tensor | None, value: float) -> None:
        """Give the value to everyone who is the anchor itself or has its id."""
        known, columns = self.what.same, strip.columns
        if strip.block.grad_keys is not None:
            if same is None:
                _own(strip, rows, lambda own, here: own.fill_(value))
            else:
                strip.part.masked_fill_(same[:, columns], value)
        elif known is not None and known.queue_rows is not None:
            first = strip.block.start + columns.start
            edges = torch.tensor([first, first + columns.stop - columns.start], device=known.queue_rows.device)
            few = slice(*torch.searchsorted(known.queue_rows, edges).tolist())
            places = known.queue_rows[few] - first
            again = torch.eq(known.ids[rows].unsqueeze(1), known.queue_ids[few])  # (rows, few)
            strip.part[:, places] = strip.part[:, places].masked_fill(again, value)

    def _few_positives(self, rows: slice) -> Positives:
        index = torch.arange(rows.start, rows.stop, device=self.x.device).unsqueeze(1)  # (rows, 1)
        extra = None if self.what.extra is None else self.what.extra[rows]  # (rows, k)
        if extra is not None:
            index = torch.cat([index, extra.clamp(min=0)], dim=1)
        values = (self.x[rows].unsqueeze(1) * self.y[index]).sum(dim=2) * self.scale  # (rows, 1 + k)
        if extra is not None:
            values[:, 1:] = (values[:, 1:] + self.what.extra_bias).masked_fill(extra < 0, -torch.inf)
        total = values.logsumexp(dim=1)
        return Positives(total, index, (values - total.unsqueeze(1)).exp())

    def _bag(self, inter: Tensor, same: Tensor | None) -> Positives:
        """Every row with the anchor's id is a positive."""
        values = inter if same is None else inter.masked_fill(~same, -torch.inf)
        total = values.logsumexp(dim=1)
        return Positives(total, None, (values - total.unsqueeze(1)).exp())

    def _pull_few(self, rows: slice, index: Tensor, slope: Tensor) -> None:
        """The gradients through a few positives of each anchor; ``slope`` is (rows, 1 + k), by their logits."""
        x, dim = self.x[rows], self.x.shape[1]
        pull = (slope.unsqueeze(2) * self.y[index]).sum(dim=1)  # (rows, D)
        self.grad_scale += torch.dot(pull.flatten(), x.flatten())
        self.grad_x[rows] += pull.mul_(self.scale)
        push = slope.mul(self.scale).unsqueeze(2) * x.unsqueeze(1)  # (rows, 1 + k, D)
        self.grad_y.index_add_(0, index.flatten(), push.reshape(-1, dim))

    def _pull(self, strip: Strip, rows: slice) -> None:
        """The gradients through all pairs of a strip."""
        block, slope = strip.block, strip.part
        asking, grad_asking = (self.y, self.grad_y) if block.partner_asks else (self.x, self.grad_x)
        pull = (slope @ block.keys[strip.columns]).mul_(block.factor)  # (rows, D)
        self.grad_scale += torch.dot(pull.flatten(), asking[rows].flatten())
        grad_asking[rows] += pull.mul_(self.scale)
        if block.grad_keys is not None:
            block.grad_keys[strip.columns].addmm_(slope.T, asking[rows], alpha=self.scale * block.factor)


def _own(strip: Strip, rows: slice, change: Callable[[Tensor, slice], object]) -> None:
    """Change the anchors' own columns, where they lie in this strip: gives them and the anchors (of the tile)."""
    first, last = max(strip.columns.start, rows.start), min(strip.columns.stop, rows.stop)
    if first < last:
        here = slice(first - rows.start, last - rows.start)
        square = strip.part[here, first - strip.columns.start : last - strip.columns.start]
        change(square.diagonal(), here)
