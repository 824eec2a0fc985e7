"""The softmax loss of one modality's anchors against other modalities and against their own.

`contrast` returns the sum over the partner modalities y of the following, with s = scale · cos:

    L(x→y) = -Σ_i w_i log( P_i / (P_i + E_i + R_i) )

    P_i = exp s(x_i, y_i) + β Σ_k exp s(x_i, y_k)     its positive, and further ones
    E_i = Σ_j exp s(x_i, y_j)                         inter-modal negatives: other samples of the batch
    R_i = λ Σ_k exp(μ s(x_i, x_k))                    intra-modal negatives: batch and queue, the same sum for every y

`plain_contrast` computes this in plain torch. `TileKernel` computes the same tile by tile: it turns the logits of some
anchors into their loss and its gradient, then drops the tile. Nothing of size N × N is kept for the backward pass, and
no product is computed twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from crossclr.losses.memory.identity import Identity
from crossclr.losses.sums.rowwise import by_rows
from crossclr.losses.sums.tile_kernel import TileKernel


@dataclass(frozen=True)
class Intra:
    """The intra-modal negatives of the anchors."""

    weight: float = 1.0  # λ of the sum
    factor: float = 1.0  # μ of the logits
    keep: Tensor | None = None  # (N,) rows of the batch that serve as negatives; None: all
    zero_self: bool = False  # count exp(0) for the anchor itself instead of omitting it
    queue: Tensor | None = None  # (R, D) rows of the queue; the batch's own rows in it are masked
    queue_keep: Tensor | None = None  # (R,) which of them serve as negatives
    older: tuple[slice, ...] | None = None  # stretches of the queue without the batch; None: the whole queue


@dataclass(frozen=True)
class Term:
    """One partner modality of the anchors."""

    weights: Tensor  # (N,) weights of the anchors; 0 for other rows. Their sum is the weight of the term.
    anchors: Tensor | None = None  # (N,) which rows are anchors; None: all
    keep: Tensor | None = None  # (N,) rows of the partner that serve as negatives; None: all
    extra: Tensor | None = None  # (N, k) additional positives of each anchor among the partner's rows, -1 for none


@dataclass(frozen=True)
class Contrast:
    """What the anchors of one modality are compared with; constants only."""

    terms: tuple[Term, ...]  # one for each partner modality
    same: Identity | None = None  # rows with equal ids, which are never negatives; None: all rows have different ids
    intra: Intra | None = None  # intra-modal negatives; None: there are none
    extra_bias: float = 0.0  # log β, added to the logits of additional positives
    chunk_size: int | None = None  # anchors computed at a time; None: all


def contrast(x: Tensor, partners: Sequence[Tensor], scale: Tensor, what: Contrast) -> tuple[Tensor, Tensor]:
    """Loss of the anchors ``x`` against their partners in each modality, differentiable any number of times.

    Row i of each partner is the positive of anchor i; all are unit rows (N, D). ``scale`` is 1 / temperature. Returns
    the sum of all terms, and (T,) the intra-modal share of the denominator, averaged over anchors.
    """
    queue = None if what.intra is None else what.intra.queue
    version = _version(queue)

    def start(with_gradient: bool) -> TileKernel:
        return TileKernel(x, partners, float(scale), what, with_gradient)

    def again(x: Tensor, scale: Tensor, *partners: Tensor) -> Tensor:
        if _version(queue) != version:
            raise RuntimeError(
                "the queue has changed since this loss was computed, so its second derivative cannot be formed; take "
                "it before the next call of the loss"
            )
        return plain_contrast(x, partners, scale, what)

    loss, intra_shares = by_rows(start, again, what.chunk_size, x, scale, *partners)
    return loss, intra_shares


def _version(queue: Tensor | None) -> int:
    """A number that changes whenever the queue is written."""
    return 0 if queue is None or queue.is_inference() else queue._version


def plain_contrast(x: Tensor, partners: Sequence[Tensor], scale: Tensor, what: Contrast) -> Tensor:
    """The same loss in plain torch with all logits at once, for second derivatives and as a readable reference."""
    rows = torch.arange(len(x), device=x.device)
    own = rows.unsqueeze(1) == rows  # (N, N)
    same = own if what.same is None else own | (what.same.ids.unsqueeze(1) == what.same.ids)
    hidden = torch.finfo(x.dtype).min / 4  # acts as -inf, but its derivatives are 0 instead of NaN

    def log_sum(logits: Tensor, keep: Tensor | None, hide: Tensor) -> Tensor:
        hide = hide if keep is None else hide | ~keep
        return torch.logsumexp(logits.masked_fill(hide, hidden), dim=1)  # (N,)

    intra = None  # (N,) log R
    if what.intra is not None:
        log_weight = torch.tensor(what.intra.weight, dtype=x.dtype, device=x.device).log()
        logits = scale * what.intra.factor * (x @ x.T)
        if what.intra.zero_self:
            kept = torch.ones_like(rows, dtype=torch.bool) if what.intra.keep is None else what.intra.keep
            intra = log_sum(logits.masked_fill(own, 0), None, (same | ~kept) & ~own)
        else:
            intra = log_sum(logits, what.intra.keep, same)
        if what.intra.queue is not None:
            queue = what.intra.queue.to(x.dtype)
            again = torch.zeros(len(x), len(queue), dtype=torch.bool, device=x.device)
            if what.same is not None and what.same.queue_rows is not None:
                again[:, what.same.queue_rows] = what.same.ids.unsqueeze(1) == what.same.queue_ids
            older = log_sum(scale * what.intra.factor * (x @ queue.T), what.intra.queue_keep, again)
            intra = torch.logaddexp(intra, older)
        intra = intra + log_weight

    loss = x.new_zeros(())
    for term, y in zip(what.terms, partners, strict=True):
        logits = scale * (x @ y.T)  # (N, N)
        positives = logits.diagonal()
        if term.extra is not None:
            further = logits.gather(1, term.extra.clamp(min=0)) + what.extra_bias  # (N, k)
            further = further.masked_fill(term.extra < 0, hidden)
            positives = torch.cat([positives.unsqueeze(1), further], dim=1).logsumexp(dim=1)
        parts = [positives, log_sum(logits, term.keep, same)] + ([] if intra is None else [intra])
        loss = loss + (term.weights * (torch.stack(parts).logsumexp(dim=0) - positives)).sum()
    return loss
