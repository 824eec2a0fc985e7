"""CrossCLR: the whole loss of the paper, with pruning, weighting, queues and multiple positives."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from crossclr.features.row_connectivity import connectivity_to
from crossclr.losses.inputs.embeddings import (
    check_choice,
    check_chunk_size,
    check_count,
    check_features,
    check_number,
    check_pair,
    full_precision,
)
from crossclr.losses.memory.influence import (
    anchor_weights,
    check_extra_positives,
    check_pruning,
    influential,
    nearest_influential,
)
from crossclr.losses.memory.queue import PairQueue
from crossclr.losses.sums.contrast import Contrast, Identity, contrast_and_share, identify, softmax_rows
from crossclr.notices import warn

FEW_ANCHORS = 0.1
"""Share of a batch below which the anchors that decide the loss are called few."""


@dataclass(frozen=True)
class LossStats:
    """What happened in the last call.

    Args:
        pruned_a: share of modality A's reference set that was pruned; likewise ``pruned_b``.
        intra_share_a: share of the denominator that is intra-modal, the mean over anchors of modality A; likewise
            ``intra_share_b``. Near 1 the positive no longer counts: lower ``intra_weight`` or ``queue_size``.
        weight_ratio_a: largest over smallest anchor weight of modality A; likewise ``weight_ratio_b``.
        queue_fill: share of the queue that is filled (0 without a queue).
        min_keep_hit: whether ``min_keep`` held the pruning rule back.
    """

    pruned_a: float = 0.0
    pruned_b: float = 0.0
    intra_share_a: float = 0.0
    intra_share_b: float = 0.0
    weight_ratio_a: float = 1.0
    weight_ratio_b: float = 1.0
    queue_fill: float = 0.0
    min_keep_hit: bool = False

    @property
    def intra_share(self) -> float:
        """Share of the denominator that is intra-modal, the mean of both modalities."""
        return (self.intra_share_a + self.intra_share_b) / 2


@dataclass(frozen=True)
class _Influence:
    """What the input features of one modality decide."""

    weights: Tensor  # (N,)
    batch: Tensor | None  # (N,) influential rows of the batch; None: nobody is
    queue: Tensor | None  # (filled,) influential rows of the queue
    nearest: Tensor | None  # (N, k) extra positives
    pruned: Tensor  # scalar, share of the reference set
    held_back: bool


class CrossCLR(nn.Module):
    r"""Contrastive loss between two modalities that spares false negatives.

    For anchor i of modality A, with δ(x, y) = exp(cos(x, y) / temperature):

    .. math::

        L_A = -\sum_i w_i \log \frac{\delta(a_i, b_i)}{\delta(a_i, b_i)
              + \sum_{j \ne i,\, a_j \notin I_A} \delta(a_i, b_j)
              + \sum_{k \in Q_A,\, k \ne i,\, a_k \notin I_A} \delta(a_i, a_k)^\lambda}

    and the loss is (L_A + L_B) / 2. Connectivity C of a row is its mean cosine to the *other* rows of the reference
    set in **input** space; the set is the queue with the current batch in it, or the batch alone without a queue.
    I_A holds the influential rows, those with high C: probably they share their meaning with many, so they are no
    negatives of anyone. They stay anchors, with a larger weight w. No gradient flows through C, masks or weights.

    Args:
        temperature: τ, divides all cosines.
        intra_weight: λ, weight of the intra-modal negatives; 0 switches them off.
        prune_threshold: γ, rows above it are influential; None switches pruning off.
        weight_scale: κ, anchors weigh softmax((C / ΣC) / κ) over the batch; None is a plain mean.
        queue_size: samples kept for intra-modal negatives and connectivity; 0 uses the batch alone. A queue smaller
            than a batch is that batch. The queue is used and filled in training mode only.
        extra_positives: K, how many influential batch samples nearest to the anchor in the anchor's input space
            join the positives (in numerator and denominator).
        positive_weight: β, weight of each of them.
        prune_by: ``relative`` compares C / max C with the threshold, ``absolute`` C itself, ``quantile`` takes the
            threshold as a quantile of C.
        min_keep: at least this share of the reference set is never pruned.
        intra_mode: how λ enters. ``logit`` multiplies intra-modal logits by λ, as the paper's pseudo-code and the
            authors' released file do. ``sum`` is the paper's displayed equation, λ·Σ δ.

            .. warning:: With a queue, ``sum`` collapses the space. A near-copy of the anchor weighs as much as the
               positive, the model cannot tell the two apart, and it pulls all embeddings together until
               ``stats.intra_share`` is near 1 and the loss stands at the logarithm of the number of negatives.
               ``logit`` acts as a margin: at cosine 1 a near-copy has exp(λ/τ), the positive exp(1/τ).
        self_logit: ``masked`` leaves the own index out of the intra-modal term; ``zero`` leaves exp(0) there as
            the released file does.
        chunk_size: anchors compared at a time; bounds memory to chunk_size × (2N + queue) and changes no value.

    Inputs of a call:
        - **za**, **zb**: (N, D) embeddings; the loss normalises them.
        - **a**, **b**: (N, Da), (N, Db) input features, one row for each sample (the mean row of a sequence). Needed
          for pruning and weighting, in either modality.
        - **ids**: (N,) integers; rows with equal ids are the same thing and never negatives of each other, in the
          batch and in the queue.

    Relations:
        With everything off it is :class:`CLIP` at a fixed temperature; with ``intra_weight=1`` and nothing pruned or
        weighted it is :class:`NTXent`.

    References:
        Zolfaghari et al., CrossCLR: Cross-modal Contrastive Learning For Multi-modal Video Representations, ICCV 2021.

    Example:
        >>> _ = torch.manual_seed(0)
        >>> loss_fn = CrossCLR(queue_size=100)
        >>> za, zb = torch.randn(8, 16, requires_grad=True), torch.randn(8, 16, requires_grad=True)
        >>> loss = loss_fn(za, zb, a=torch.randn(8, 32), b=torch.randn(8, 24), ids=torch.arange(8))
        >>> loss.backward()
        >>> loss_fn.stats.queue_fill
        0.08
    """

    def __init__(
        self,
        temperature: float = 0.03,
        intra_weight: float = 0.8,
        prune_threshold: float | None = 0.9,
        weight_scale: float | None = 0.0035,
        queue_size: int = 0,
        extra_positives: int = 0,
        positive_weight: float = 0.15,
        prune_by: str = "relative",
        min_keep: float = 0.25,
        intra_mode: str = "logit",
        self_logit: str = "masked",
        chunk_size: int | None = None,
    ) -> None:
        super().__init__()
        self.temperature = check_number("temperature", temperature, 0, above=True)
        self.intra_weight = check_number("intra_weight", intra_weight, 0)
        check_pruning(prune_threshold, prune_by, min_keep)
        if weight_scale is not None:
            check_number("weight_scale", weight_scale, 0, above=True)
        check_extra_positives(extra_positives, positive_weight)
        if extra_positives and prune_threshold is None:
            warn(
                "extra_positives come from the influential samples, and prune_threshold=None makes nobody "
                "influential: no positive will be added"
            )
        self.prune_threshold = prune_threshold
        self.weight_scale = weight_scale
        self.queue_size = check_count("queue_size", queue_size, 0)
        self.extra_positives = extra_positives
        self.positive_weight = positive_weight
        self.prune_by = prune_by
        self.min_keep = min_keep
        self.intra_mode = check_choice("intra_mode", intra_mode, ("sum", "logit"))
        self.self_logit = check_choice("self_logit", self_logit, ("masked", "zero"))
        self.chunk_size = check_chunk_size(chunk_size)
        self.queue = PairQueue(queue_size) if queue_size else None
        self._last: tuple[Tensor | float | bool, ...] = (0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 0.0, False)
        self._warned: set[str] = set()

    @classmethod
    def youcook2(cls, **options: Any) -> CrossCLR:
        """The paper's settings for YouCook2, local level (``queue_size=3000`` is the main text's other reading)."""
        return cls(**{"weight_scale": 0.0035, "intra_weight": 0.8, "queue_size": 5000, **options})

    @classmethod
    def lsmdc(cls, **options: Any) -> CrossCLR:
        """The paper's settings for LSMDC (``queue_size=5000`` is the main text's other reading)."""
        settings = {"weight_scale": 0.0055, "intra_weight": 0.65, "queue_size": 3000, "positive_weight": 0.2}
        return cls(**{**settings, **options})

    @property
    def stats(self) -> LossStats:
        """What happened in the last call."""
        *numbers, held_back = self._last
        return LossStats(*(float(number) for number in numbers), min_keep_hit=bool(held_back))

    @property
    def needs_features(self) -> bool:
        """Whether a call needs the input features ``a`` and ``b``."""
        return self.prune_threshold is not None or self.weight_scale is not None

    def reset(self) -> None:
        """Empty the queue."""
        if self.queue is not None:
            self.queue.reset()

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def forward(
        self,
        za: Tensor,
        zb: Tensor,
        a: Tensor | None = None,
        b: Tensor | None = None,
        ids: Tensor | None = None,
    ) -> Tensor:
        """Scalar loss of a batch; see the class for the arguments."""
        with full_precision(za):
            return self._forward(za, zb, a, b, ids)

    def _forward(self, za: Tensor, zb: Tensor, a: Tensor | None, b: Tensor | None, ids: Tensor | None) -> Tensor:
        pair = check_pair(za, zb, ids)
        if self.needs_features:
            parts = [
                (self.prune_threshold, "pruning", "prune_threshold=None"),
                (self.weight_scale, "weighting", "weight_scale=None"),
            ]
            used = [(what, off) for option, what, off in parts if option is not None]
            needed_for, switch_off = (" and ".join(words) for words in zip(*used, strict=True))
            a = check_features("a", a, pair.za, needed_for, switch_off)
            b = check_features("b", b, pair.zb, needed_for, switch_off)
        else:
            a = b = None

        slots = None  # (N,) where the batch stands in the queue
        if self.queue is not None and self.training:
            self.queue.check(a, b, pair.za, pair.zb)
            slots = self.queue.push(a, b, pair.za, pair.zb, pair.ids)
            if len(pair.za) >= self.queue_size:
                slots = None  # the batch fills the queue: it is the reference set

        influence_a = self._influence("a", a, pair.za, slots)
        influence_b = self._influence("b", b, pair.zb, slots)
        scale = pair.za.new_tensor(1 / self.temperature)
        if slots is not None and self.queue is not None and self.intra_weight:
            same = identify(pair.ids, self.queue.ids[: self.queue.filled], slots)
        else:
            same = identify(pair.ids)
        loss_a, share_a = contrast_and_share(pair.za, pair.zb, scale, self._contrast("a", influence_a, same, slots))
        loss_b, share_b = contrast_and_share(pair.zb, pair.za, scale, self._contrast("b", influence_b, same, slots))
        self._note(influence_a, influence_b, (share_a, share_b))
        return (loss_a + loss_b) / 2

    def _influence(self, side: str, features: Tensor | None, like: Tensor, slots: Tensor | None) -> _Influence:
        """Connectivity of one modality and what follows from it; ``features`` are the batch's unit rows."""
        if features is None:
            weights = torch.full_like(like[:, 0], 1 / len(like))
            return _Influence(weights.detach(), None, None, None, weights.new_zeros(()), False)
        if slots is None or self.queue is None:
            rows, total, squares = features, features.sum(0), features.square().sum(1)
        else:
            filled = self.queue.filled
            rows = getattr(self.queue, f"features_{side}")[:filled]
            total = getattr(self.queue, f"total_{side}")
            squares = getattr(self.queue, f"squares_{side}")[:filled]
        scores = connectivity_to(rows, total, len(rows), squares)  # (M,)
        mask, held_back = influential(scores, self.prune_threshold, self.prune_by, self.min_keep)
        batch_scores, batch_mask = (scores, mask) if slots is None else (scores[slots], mask[slots])
        nearest = None
        if self.extra_positives:
            nearest = nearest_influential(features, batch_mask, self.extra_positives)
        return _Influence(
            weights=anchor_weights(batch_scores, self.weight_scale).to(like.dtype),
            batch=batch_mask,
            queue=mask if slots is not None else None,
            nearest=nearest,
            pruned=mask.float().mean(),
            held_back=held_back,
        )

    def _contrast(self, side: str, influence: _Influence, same: Identity | None, slots: Tensor | None) -> Contrast:
        keep = None if influence.batch is None else ~influence.batch
        by_logit = self.intra_mode == "logit"
        rows = queue_keep = older = None
        if slots is not None and self.queue is not None and self.intra_weight:
            rows = getattr(self.queue, f"embeddings_{side}")[: self.queue.filled]
            if influence.queue is None:
                queue_keep = torch.ones(len(rows), dtype=torch.bool, device=rows.device)
            else:
                queue_keep = ~influence.queue
            queue_keep[slots] = False  # the batch itself takes part with its live rows
            if 8 * len(slots) > len(rows):  # else leaving its products out costs more than it spares
                older = self.queue.older(len(slots))
        intra_bias = None
        if self.intra_weight:
            intra_bias = 0.0 if by_logit else math.log(self.intra_weight)
        return Contrast(
            row_loss=softmax_rows(influence.weights),
            same=same,
            inter_keep=keep,
            intra_keep=keep,
            intra_bias=intra_bias,
            intra_scale=self.intra_weight if by_logit else 1.0,
            zero_self=self.self_logit == "zero",
            queue=rows,
            queue_keep=queue_keep,
            older=older,
            extra=influence.nearest,
            extra_bias=math.log(self.positive_weight),
            chunk_size=self.chunk_size,
        )

    def _note(self, a: _Influence, b: _Influence, intra_shares: tuple[Tensor, Tensor]) -> None:
        fill = self.queue.filled / self.queue_size if self.queue is not None else 0.0
        ratios = [side.weights.max() / side.weights.min() for side in (a, b)]
        held_back = a.held_back or b.held_back
        self._last = (a.pruned, b.pruned, *intra_shares, ratios[0], ratios[1], fill, held_back)
        if held_back and "pruning" not in self._warned:
            sides = " and ".join(name for name, side in (("A", a), ("B", b)) if side.held_back)
            self._warn_once(
                "pruning",
                f"pruning by prune_by={self.prune_by!r}, prune_threshold={self.prune_threshold:g} would leave fewer "
                f"than min_keep={self.min_keep:g} of modality {sides} as negatives, so only the most connected rows "
                "were pruned. Features whose cosines are all high do this: raise prune_threshold, or use "
                "prune_by='quantile'. (This is said once.)",
            )
        if self.weight_scale is not None and "weights" not in self._warned:
            fewest = min(float(1 / side.weights.square().sum()) for side in (a, b))  # anchors that decide the mean
            if fewest < FEW_ANCHORS * len(a.weights):
                self._warn_once(
                    "weights",
                    f"weighting by weight_scale={self.weight_scale:g} lets about {max(fewest, 1):.0f} of the "
                    f"{len(a.weights)} anchors decide the loss. Small batches and features with a mean near zero do "
                    "this: raise weight_scale, or switch weighting off with weight_scale=None. (This is said once.)",
                )

    def _warn_once(self, what: str, message: str) -> None:
        self._warned.add(what)
        warn(message)

    def extra_repr(self) -> str:
        """The options, for ``print(loss)``."""
        names = (
            "temperature intra_weight prune_threshold weight_scale queue_size extra_positives positive_weight "
            "prune_by min_keep intra_mode self_logit chunk_size"
        )
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in names.split())
