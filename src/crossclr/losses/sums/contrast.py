"""The softmax loss of one modality's anchors against other modalities and against their own.

`contrast` returns the sum over the partner modalities y of the following, with s = scale · cos:

    L(x→y) = -Σ_i w_i log( P_i / (P_i + E_i + R_i) )

    P_i = exp s(x_i, y_i) + β Σ_k exp s(x_i, y_k)     its positive, and further ones
    E_i = Σ_j exp s(x_i, y_j)                         inter-modal negatives: other samples of the batch
    R_i = λ Σ_k exp(μ s(x_i, x_k))                    intra-modal negatives: batch and queue, the same sum for every y

The logits of some anchors become their loss and its gradient at once (see `crossclr.losses.sums.rowwise`). Nothing of
size N × N is kept for the backward pass, and no product is computed twice.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from crossclr.losses.sums.rowwise import hidden_logit, log_sum_exp, sum_and_fact


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
    the sum of all terms, and the intra-modal share of the denominator, averaged over anchors and terms.
    """
    queue = None if what.intra is None else what.intra.queue
    version = _version(queue)

    def part(here: slice, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        if _version(queue) != version:
            raise RuntimeError(
                "the queue has changed since this loss was computed, so its second derivative cannot be formed; take "
                "it before the next call of the loss"
            )
        (own_x, *own_partners), (x, *partners, scale) = tensors[: 1 + len(what.terms)], tensors[1 + len(what.terms) :]
        anchors = own_x * scale
        same = None if what.same is None else what.same.within(here)
        hide = here.start if same is None else same  # the anchor itself, and rows with its id
        intra = None if what.intra is None else _log_intra(anchors, x, what.intra, what.same, here, hide)  # log R
        loss, share = x.new_zeros(()), x.new_zeros(())
        for term, y, own_y in zip(what.terms, partners, own_partners, strict=True):
            positives = _log_positives(anchors, y, own_y, term, what.extra_bias, here)  # log P
            negatives = log_sum_exp(anchors @ y.T, hide, keep=term.keep)  # log E
            negatives = negatives if intra is None else _log_add(negatives, intra)
            gap = negatives - positives
            loss = loss + torch.dot(term.weights[here], _log_add(gap, torch.zeros_like(gap)))
            if intra is not None:
                of_all = (intra - _log_add(negatives, positives)).detach().exp()
                chosen = torch.ones_like(term.weights, dtype=torch.bool) if term.anchors is None else term.anchors
                share = share + (of_all * chosen[here]).sum() / (chosen.sum().clamp(min=1) * len(what.terms))
        return loss, share

    return sum_and_fact(part, what.chunk_size, (x, *partners), (scale,))


def _log_intra(
    anchors: Tensor, x: Tensor, intra: Intra, same: Identity | None, here: slice, hide: Tensor | int
) -> Tensor:
    """(rows,) log of the weighted sum over intra-modal negatives."""
    anchors = anchors * intra.factor
    found = log_sum_exp(anchors @ x.T, hide, keep=intra.keep)
    if intra.zero_self:
        found = _log_add(found, torch.zeros_like(found))
    if intra.queue is not None:
        for stretch in (slice(0, len(intra.queue)),) if intra.older is None else intra.older:
            keep = None if intra.queue_keep is None else intra.queue_keep[stretch]
            logits = anchors @ intra.queue[stretch].to(x.dtype).T
            found = _log_add(found, log_sum_exp(logits, *_same_in_queue(same, here, stretch), keep))
    return found + math.log(intra.weight)


def _same_in_queue(same: Identity | None, here: slice, stretch: slice) -> tuple[Tensor | None, Tensor | None]:
    """(rows, few) equal ids of anchors and rows of the queue, and (few,) the columns of these rows."""
    if same is None or same.queue_rows is None:
        return None, None
    edges = torch.tensor([stretch.start, stretch.stop], device=same.queue_rows.device)
    few = slice(*torch.searchsorted(same.queue_rows, edges).tolist())
    return same.ids[here].unsqueeze(1) == same.queue_ids[few], same.queue_rows[few] - stretch.start


def _log_positives(anchors: Tensor, y: Tensor, own_y: Tensor, term: Term, extra_bias: float, here: slice) -> Tensor:
    """(rows,) log of the sum over positives."""
    positives = (anchors * own_y).sum(dim=1)
    if term.extra is None:
        return positives
    extra = term.extra[here]  # (rows, k)
    further = (anchors.unsqueeze(1) * y[extra.clamp(min=0)]).sum(dim=2) + extra_bias
    further = further.masked_fill(extra < 0, hidden_logit(y.dtype))
    return torch.cat([positives.unsqueeze(1), further], dim=1).logsumexp(dim=1)


def _log_add(first: Tensor, second: Tensor) -> Tensor:
    """log(exp first + exp second); unlike those of torch.logaddexp, its second derivatives are finite everywhere."""
    return torch.stack([first, second]).logsumexp(dim=0)


def _version(queue: Tensor | None) -> int:
    """A number that changes whenever the queue is written."""
    return 0 if queue is None or queue.is_inference() else queue._version
