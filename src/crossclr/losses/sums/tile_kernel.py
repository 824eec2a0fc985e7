"""The kernel of `contrast`: logits of some anchors with all keys, their sums, and their gradients.

Between two matrix products a logit is masked, shifted, exponentiated, weighted and summed. The kernel does this for one
strip of a tile's columns at a time, so that a strip is read from memory once instead of ten times.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from crossclr.losses.sums.rowwise import Totals

if TYPE_CHECKING:
    from crossclr.losses.sums.contrast import Contrast

STRIP = 1 << 19  # logits processed at a time


@dataclass(frozen=True)
class Block:
    """One set of keys that the anchors are compared with."""

    keys: Tensor  # (keys, D) unit rows
    grad_keys: Tensor | None  # where their gradient goes; None for older rows
    keep: Tensor | None = None  # (keys,) which of them serve as negatives; None: all
    term: int | None = None  # number of the partner modality they belong to; None: the anchors' own modality
    factor: float = 1.0  # multiplies the logits
    weight: float = 1.0  # multiplies the exponentials
    zero_self: bool = False  # count exp(0) for the anchor itself
    start: int = 0  # for older rows, where the keys begin in the queue

    @cached_property
    def mask(self) -> Tensor | None:
        """(keys,) 0, or -inf for rows that are not negatives."""
        return None if self.keep is None else torch.zeros_like(self.keys[:, 0]).masked_fill_(~self.keep, -torch.inf)

    @cached_property
    def weights(self) -> Tensor | float:
        """(keys,) factors of the exponentials, or one for all."""
        return self.weight if self.keep is None else self.keep.to(self.keys.dtype) * self.weight


@dataclass(frozen=True)
class Strip:
    """Some columns of one block's tile."""

    block: Block
    columns: slice
    part: Tensor  # (rows, columns): logits, then exponentials, then the gradient by the logits


@dataclass(frozen=True)
class Positives:
    """The positives of a tile's anchors in one partner modality."""

    total: Tensor  # (rows,) log of their sum
    index: Tensor  # (rows, 1 + k) which rows of the partner they are
    share: Tensor  # (rows, 1 + k) the share of each in the sum


@dataclass(frozen=True)
class Peaks:
    """What is subtracted from logits before the exponential: (rows,) for intra-modal ones, and for each term."""

    intra: Tensor
    terms: list[Tensor]


class TileKernel(Totals):
    """Loss and gradients of `contrast`, accumulated over tiles of anchors."""

    def __init__(
        self, x: Tensor, partners: Sequence[Tensor], scale: float, what: Contrast, with_gradient: bool
    ) -> None:
        self.x, self.partners, self.scale, self.what, self.with_gradient = x, partners, scale, what, with_gradient
        self.loss = x.new_zeros(())  # the sum of all terms
        self.intra_shares = x.new_zeros(len(partners))  # of the denominator, averaged over the anchors
        self.results = self.loss, self.intra_shares
        self.gradients = [torch.zeros_like(x), x.new_zeros(()), *(torch.zeros_like(y) for y in partners)]
        self._grad_x, self._grad_scale, *self._grad_partners = self.gradients
        self._anchor_counts = [len(x) if term.anchors is None else int(term.anchors.sum()) for term in what.terms]
        self._lowest = math.log(torch.finfo(x.dtype).tiny) + 1
        self._blocks = self._all_blocks()
        rows = min(what.chunk_size or len(x), len(x))
        self._space = [x.new_empty(rows, len(block.keys)) for block in self._blocks]

    def _all_blocks(self) -> list[Block]:
        blocks = [
            Block(y, grad_y, term.keep, number)
            for number, (y, grad_y, term) in enumerate(
                zip(self.partners, self._grad_partners, self.what.terms, strict=True)
            )
        ]
        intra = self.what.intra
        if intra is None:
            return blocks
        factor, weight = intra.factor, intra.weight
        blocks.append(Block(self.x, self._grad_x, intra.keep, None, factor, weight, intra.zero_self))
        if intra.queue is not None:
            for part in (slice(0, len(intra.queue)),) if intra.older is None else intra.older:
                keep = None if intra.queue_keep is None else intra.queue_keep[part]
                keys = intra.queue[part].to(self.x.dtype)
                blocks.append(Block(keys, None, keep, None, factor, weight, start=part.start))
        return blocks

    def add(self, rows: slice) -> None:
        """Add the loss of these anchors and its gradients."""
        same = None if self.what.same is None else self.what.same.within(rows)  # (rows, N)
        strips = self._strips(rows.stop - rows.start)
        positives = [self._positives(rows, number) for number in range(len(self.partners))]
        peaks = self._logits(strips, rows, same)
        intra_sums, sums = self._exponentials(strips, peaks, rows, same)
        slopes: list[Tensor] = []
        shared: list[Tensor] = []  # of the intra-modal logits, by each term
        for number, (term, positive) in enumerate(zip(self.what.terms, positives, strict=True)):
            # The intra-modal sums have their own peak, which is never above the term's, so nothing overflows.
            shift = (peaks.intra - peaks.terms[number]).clamp(max=0).exp()
            intra = [one * shift for one in intra_sums]
            total = sum(intra, sums[number])  # (rows,) of all negatives
            gap = peaks.terms[number] + total.log() - positive.total  # -inf where nothing is contrasted
            weights = term.weights[rows]
            self.loss += torch.dot(weights, torch.logaddexp(gap, torch.zeros_like(gap)))
            if intra:
                share = torch.where(total > 0, sum(intra[1:], intra[0]) / total, 0) * torch.sigmoid(gap)
                share = share if term.anchors is None else share * term.anchors[rows]
                self.intra_shares[number] += share.sum() / max(self._anchor_counts[number], 1)
            if not self.with_gradient:
                continue
            slope = weights * torch.sigmoid(gap)
            self._pull_positives(rows, number, positive, -slope)
            slopes.append(torch.where(total > 0, slope / total, 0).unsqueeze(1))
            shared.append(slopes[-1] * shift.unsqueeze(1))
        if not self.with_gradient:
            return
        intra_slopes = sum(shared[1:], shared[0])
        for strip in strips:
            strip.part.mul_(intra_slopes if strip.block.term is None else slopes[strip.block.term])
            if strip.block.zero_self:
                _own(strip, rows, lambda own, here: own.zero_())
            self._pull(strip, rows)

    def _strips(self, count: int) -> list[Strip]:
        """The tiles of all blocks for ``count`` anchors, cut into columns."""
        width = max(STRIP // count, 64)
        return [
            Strip(block, columns, space[:count, columns])
            for block, space in zip(self._blocks, self._space, strict=True)
            for start in range(0, len(block.keys), width)
            for columns in (slice(start, min(start + width, len(block.keys))),)
        ]

    def _logits(self, strips: list[Strip], rows: slice, same: Tensor | None) -> Peaks:
        """Fill the strips with logits, -inf for rows that are not negatives; return what to subtract from them."""
        anchors: dict[float, Tensor] = {}  # factor -> (rows, D) the anchors, times their scale
        terms: list[list[Tensor]] = [[] for _ in self.partners]
        intra: list[Tensor] = []
        for strip in strips:
            block = strip.block
            if block.factor not in anchors:
                anchors[block.factor] = self.x[rows] * (self.scale * block.factor)
            torch.mm(anchors[block.factor], block.keys[strip.columns].T, out=strip.part)
            if block.mask is not None:
                strip.part.add_(block.mask[strip.columns])
            self._hide(strip, rows, same, -torch.inf)
            if block.zero_self:
                _own(strip, rows, lambda own, here: own.zero_())
            (intra if block.term is None else terms[block.term]).append(strip.part.amax(dim=1))
        highest = [torch.stack(one).amax(dim=0) for one in terms]
        lowest = torch.stack(highest).amin(dim=0)
        own = torch.stack(intra).amax(dim=0) if intra else torch.full_like(lowest, -torch.inf)
        return Peaks(_finite(torch.maximum(own, lowest)), [_finite(torch.maximum(own, one)) for one in highest])

    def _exponentials(
        self, strips: list[Strip], peaks: Peaks, rows: slice, same: Tensor | None
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Turn logits into exponentials; (rows,) sums of each intra-modal strip, and of each term."""
        intra: list[Tensor] = []
        sums = [torch.zeros_like(peaks.intra) for _ in self.partners]
        for strip in strips:
            part, block = strip.part, strip.block
            peak = peaks.intra if block.term is None else peaks.terms[block.term]
            # The exponential is several times slower for -inf and for subnormal results, hence the bound.
            part.sub_(peak.unsqueeze(1)).clamp_(min=self._lowest).exp_()
            if isinstance(block.weights, Tensor):
                part *= block.weights[strip.columns]
            elif block.weights != 1.0:
                part *= block.weights
            self._hide(strip, rows, same, 0.0)
            if block.zero_self and self.what.intra is not None:
                own = (math.log(self.what.intra.weight) - peak).exp()  # (rows,)
                _own(strip, rows, partial(_copy_own, own))
            if block.term is None:
                intra.append(part.sum(dim=1))
            else:
                sums[block.term] += part.sum(dim=1)
        return intra, sums

    def _hide(self, strip: Strip, rows: slice, same: Tensor | None, value: float) -> None:
        """Set the anchor itself and every row with its id to the value."""
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

    def _positives(self, rows: slice, number: int) -> Positives:
        y, extra = self.partners[number], self.what.terms[number].extra
        index = torch.arange(rows.start, rows.stop, device=self.x.device).unsqueeze(1)  # (rows, 1)
        if extra is not None:
            extra = extra[rows]  # (rows, k)
            index = torch.cat([index, extra.clamp(min=0)], dim=1)
        values = (self.x[rows].unsqueeze(1) * y[index]).sum(dim=2) * self.scale  # (rows, 1 + k)
        if extra is not None:
            values[:, 1:] = (values[:, 1:] + self.what.extra_bias).masked_fill(extra < 0, -torch.inf)
        total = values.logsumexp(dim=1)
        return Positives(total, index, (values - total.unsqueeze(1)).exp())

    def _pull_positives(self, rows: slice, number: int, positives: Positives, slope: Tensor) -> None:
        """Add the gradients through the positives; ``slope`` is (rows,), by the log of their sum."""
        slopes = positives.share * slope.unsqueeze(1)  # (rows, 1 + k) by their logits
        x, dim = self.x[rows], self.x.shape[1]
        pull = (slopes.unsqueeze(2) * self.partners[number][positives.index]).sum(dim=1)  # (rows, D)
        self._grad_scale += torch.dot(pull.flatten(), x.flatten())
        self._grad_x[rows] += pull.mul_(self.scale)
        push = slopes.mul(self.scale).unsqueeze(2) * x.unsqueeze(1)  # (rows, 1 + k, D)
        self._grad_partners[number].index_add_(0, positives.index.flatten(), push.reshape(-1, dim))

    def _pull(self, strip: Strip, rows: slice) -> None:
        """Add the gradients through all pairs of a strip."""
        block, slope = strip.block, strip.part
        pull = (slope @ block.keys[strip.columns]).mul_(block.factor)  # (rows, D)
        self._grad_scale += torch.dot(pull.flatten(), self.x[rows].flatten())
        self._grad_x[rows] += pull.mul_(self.scale)
        if block.grad_keys is not None:
            block.grad_keys[strip.columns].addmm_(slope.T, self.x[rows], alpha=self.scale * block.factor)


def _copy_own(values: Tensor, own: Tensor, here: slice) -> None:
    own.copy_(values[here])


def _finite(peak: Tensor) -> Tensor:
    return peak.masked_fill(peak == -torch.inf, 0)


def _own(strip: Strip, rows: slice, change: Callable[[Tensor, slice], object]) -> None:
    """Change the anchors' own columns if they are in this strip; ``change`` gets them and the anchors of the tile."""
    first, last = max(strip.columns.start, rows.start), min(strip.columns.stop, rows.stop)
    if first < last:
        here = slice(first - rows.start, last - rows.start)
        square = strip.part[here, first - strip.columns.start : last - strip.columns.start]
        change(square.diagonal(), here)
