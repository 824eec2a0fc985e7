"""CrossCLR: the paper's loss in the paper's order, with pruning, weights, queues and multiple positives."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from crossclr.losses.base import EmbeddedBatch, TemperatureLoss, repeated
from crossclr.losses.names import PairsOption, check_choice, check_count, check_number, loss_options
from crossclr.losses.queue import Queues
from crossclr.losses.tiles import HIDDEN, log_sum_exp, tiled_loss
from crossclr.notices import warn

MAX_QUEUE = 10_000_000  # rows; with 384 channels these take 15 GB
TIE = 1e-6  # connectivities that differ by less are equal: rounding must not decide
ROWS_AT_ONCE = 2048  # anchors whose additional positives are searched together; limits memory


def connectivity(
    rows: Tensor, total: Tensor | None = None, squares: Tensor | None = None, count: int | None = None
) -> Tensor:
    """(4): mean cosine of each row to all others of its set; C in the paper, without the row itself.

    The mean of the inner products is the inner product with the sum, so this is one matrix-vector product. ``rows``
    (n, Dx) have length one or are zeros. The set is ``rows``, or has the sum ``total`` (Dx,) and ``count`` rows.
    ``squares`` (n,) are the inner products of each row with itself, if they are known.

    Example:
        >>> connectivity(torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])).tolist()
        [0.5, 0.0, 0.5]
    """
    total = rows.sum(0) if total is None else total.to(rows.dtype)
    count = len(rows) if count is None else count
    if count < 2:
        return rows.new_zeros(len(rows))
    return (torch.mv(rows, total) - (rows.square().sum(1) if squares is None else squares)) / (count - 1)


def influential(c: Tensor, threshold: float | None, rule: str, min_keep: float) -> tuple[Tensor, bool]:
    """I of (4): (M,) which rows of the reference set are influential, and whether ``min_keep`` limited the rule.

    At least the share ``min_keep`` of the set stays, the least connected rows first. Rows of equal connectivity (up to
    rounding) at the cut all stay, so neither the order of rows nor their dtype matters.
    """
    if threshold is None or not len(c) or float(highest := c.max()) <= TIE:
        return torch.zeros_like(c, dtype=torch.bool), False
    if rule == "quantile":
        cut = torch.quantile(c.double(), threshold)
    else:
        cut = threshold * highest if rule == "relative" else c.new_tensor(threshold)
    mask = c > cut + TIE
    most = len(c) - math.ceil(min_keep * len(c))
    if int(mask.sum()) <= most:
        return mask, False
    return mask & (c > c.sort(descending=True).values[most] + TIE), True


def weight_logits(c: Tensor, weight_scale: float | None, min_effective: float) -> Tensor:
    """(5), normalised: (N,) logits of the anchors' weights, (C / ΣC) / κ.

    κ (``weight_scale``) is raised until the effective share 1 / (N Σw²) of the anchors is at least ``min_effective``.
    All weights are equal without κ, or if the mean of C is at most 1e-6.
    """
    if weight_scale is None or not len(c) or float(c.mean()) <= 1e-6:
        return torch.zeros_like(c)
    logits = c / c.sum() / weight_scale
    low, high, power = -60.0, 0.0, 0.0  # of the factor exp(power) of 1 / κ; the share falls as it grows
    for _ in range(50):
        enough = float(1 / (len(c) * (math.exp(power) * logits).softmax(dim=0).square().sum())) >= min_effective
        if enough and power == 0:
            break
        low, high = (power, high) if enough else (low, power)
        power = (low + high) / 2
    return math.exp(power) * logits


def extra_positives(features: Tensor, candidates: Tensor, count: int) -> Tensor | None:
    """P of (8): (N, k) the candidates that are nearest to each anchor in input space, at most ``count``.

    -1 where an anchor has fewer than k; None if no anchor has any.
    """
    columns = candidates.nonzero().flatten()  # (I,)
    if len(columns) == 0:
        return None
    positives = []
    for block in torch.split(torch.arange(len(features), device=features.device), ROWS_AT_ONCE):
        cosines = features[block] @ features[columns].T  # (block, I)
        cosines.masked_fill_(block.unsqueeze(1) == columns, -torch.inf)
        nearest = cosines.topk(min(count, len(columns)), dim=1)
        positives.append(torch.where(nearest.values == -torch.inf, -1, columns[nearest.indices]))
    return torch.cat(positives)


@dataclass(frozen=True)
class OlderRows:
    """A stretch of a queue without the current batch."""

    rows: Tensor  # (R, D) detached embeddings
    keep: Tensor  # (R,) which of them serve as negatives
    ids: Tensor | None  # (few,) ids of those that also occur in the batch
    columns: Tensor | None  # (few,) where these are in the stretch


@dataclass(frozen=True)
class Anchors:
    """One modality as anchors; all constants except the rows."""

    rows: Tensor  # (N, D) unit rows
    features: Tensor  # (N, Dx) unit rows; without columns if the loss needs none
    present: Tensor  # (N,) which samples have the modality
    influential: Tensor  # (N,) I of the batch
    weights: Tensor  # (N,) logits of the weights
    older: tuple[OlderRows, ...]  # of the queue
    held_back: bool  # whether ``min_keep`` limited the pruning
    stats: tuple[Tensor | float, ...]  # the first values of LossStats


@dataclass(frozen=True)
class Partner:
    """Another modality, as the anchors see it."""

    rows: Tensor  # (N, D) unit rows
    weights: Tensor  # (N,) weights of the anchors; their sum is the weight of the pair
    both: Tensor  # (N,) which samples have both modalities
    extra: Tensor | None  # (N, k) additional positives of each anchor, -1 for none


@dataclass(frozen=True)
class LossStats:
    """What happened in the last call: the mean over the modalities, and each of them.

    Args:
        pruned: share of the reference set that was pruned.
        effective: share of the anchors that decides the loss, 1 / (N Σw²).
        weight_ratio: largest over smallest anchor weight.
        queue_fill: share of the queue that is filled (0 without a queue).
        intra_share: intra-modal share of the denominator, averaged over anchors. Near 1 the positive no longer counts:
            lower ``intra_weight`` or ``queue_size``.
        min_keep_hit: whether ``min_keep`` limited the pruning, for any modality.
        modalities: name -> what happened to it.
    """

    pruned: float = 0.0
    effective: float = 1.0
    weight_ratio: float = 1.0
    queue_fill: float = 0.0
    intra_share: float = 0.0
    min_keep_hit: bool = field(default=False, kw_only=True)
    modalities: Mapping[str, "LossStats"] = field(default_factory=dict, kw_only=True)


class CrossCLR(TemperatureLoss):
    r"""Contrastive loss between modalities that avoids false negatives.

    The paper's equations for modalities x and y, with δ(u, v) = exp(cos(u, v) / τ). The equations (3), (7) and (9) are
    (2), (6) and (8) with x and y exchanged:

    .. math::

        \begin{align*}
        (1) \quad & L = -E_i \log \frac{\delta(x_i, y_i)}{\delta(x_i, y_i) + \sum_{j \in N_i} \delta(x_i, y_j)} \\
        (2) \quad & L(x_i) = -\log \frac{\delta(x_i, y_i)}{\delta(x_i, y_i) + \sum_{k \in N^E_i} \delta(x_i, y_k)
            + \lambda \sum_{k \in N^R_i} \delta(x_i, x_k)} \\
        (4) \quad & C(x_i) = \frac{1}{M} \sum_j \cos(x_i, x_j), \quad I_x = \{x_i \mid C(x_i) > \gamma\} \\
        (5) \quad & w(x_i) = \exp(C(x_i) / \kappa) \\
        (6) \quad & L_x = -E_i\, w(x_i) \log \frac{\delta(x_i, y_i)}{\delta(x_i, y_i)
            + \sum_{x_k \notin I_x} \delta(x_i, y_k) + \lambda \sum_{x_k \in Q_x \setminus I_x} \delta(x_i, x_k)},
            \quad \frac{L_x + L_y}{2} \\
        (8) \quad & L_x = -E_i\, w(x_i) \log \frac{\delta(x_i, y_i) + \beta \sum_{y_k \in P_y} \delta(x_i, y_k)}{\ldots}
        \end{align*}

    Connectivity C uses **input** features and omits the row itself; the reference set is the queue Q with the current
    batch in it, or the batch alone. Influential rows I probably mean the same as many others, so they are never
    negatives. They stay anchors, with larger weights. These are normalised, softmax((C / ΣC) / κ), because the printed
    exponential overflows; λ multiplies the logits (see ``intra_mode``), and the additional positives of (8) are in the
    denominator too. No gradient flows through C, masks or weights.

    Each modality has its own connectivity, influential rows, weights and queue, computed once over all rows that have
    it. A sample that lacks y is still an intra-modal negative within x. The loss is the mean over the pairs.

    Args:
        temperature: τ, divides all cosines.
        intra_weight: λ, weight of the intra-modal negatives; 0 switches them off.
        prune_threshold: γ, rows above it are influential; None switches pruning off.
        weight_scale: κ, anchors have the weights softmax((C / ΣC) / κ) over the batch; None is a plain mean.
        queue_size: samples of each modality kept for intra-modal negatives and connectivity; 0 uses the batch alone.
            A batch larger than the queue replaces it. The queue is used and filled in training mode only.
        extra_positives: K, number of influential batch samples nearest to the anchor in input space that become
            additional positives (in numerator and denominator).
        positive_weight: β, weight of each additional positive.
        prune_by: ``relative`` compares C / max C with the threshold, ``absolute`` C itself, ``quantile`` takes the
            threshold as a quantile of C.
        min_keep: at least this share of the reference set is never pruned.
        intra_mode: how λ enters. ``logit`` multiplies intra-modal logits by λ, as the paper's pseudo-code and the
            authors' released file do. ``sum`` is the paper's displayed equation, λ·Σ δ. With a queue it collapses
            the embeddings: a near-copy of the anchor weighs as much as the positive, until ``stats.intra_share`` is
            near 1. ``logit`` acts as a margin: at cosine 1 a near-copy has exp(λ/τ), the positive exp(1/τ).
        self_logit: ``masked`` omits the anchor itself from the intra-modal term; ``zero`` counts exp(0) for it, as the
            released file does.
        min_effective: κ is raised until at least this share of the anchors decides the loss (1 / (N Σw²)), because the
            weights explode where the mean of the features is near zero.
        chunk_size: anchors compared at a time; limits memory to chunk_size × (M·N + queue) and does not change the
            result.
        pairs: which pairs of modalities to compare; see :class:`Loss`.

    Inputs of a call:
        As for every :class:`Loss`. Pruning and weighting need the input features of each modality, one row for each
        sample (the mean of a sequence). Samples with equal ids are never negatives of each other, also in the queue.

    Relations:
        With everything off it equals :class:`CLIP` at a fixed temperature. With ``intra_weight=1`` and without pruning
        and weighting it equals :class:`NTXent`.

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
        >>> z = {name: torch.randn(8, 16) for name in ("video", "audio", "text")}
        >>> loss = loss_fn(z, features=z, present={"audio": torch.arange(8) < 5})
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
        min_effective: float = 0.0,
        chunk_size: int | None = None,
        pairs: PairsOption = "all",
    ) -> None:
        super().__init__(temperature, chunk_size, pairs)
        self.intra_weight = check_number("intra_weight", intra_weight, 0)
        self.prune_by = check_choice("prune_by", prune_by, ("relative", "absolute", "quantile"))
        if prune_threshold is not None:
            check_number("prune_threshold", prune_threshold, -1 if prune_by == "absolute" else 0, 1)
        if weight_scale is not None:
            check_number("weight_scale", weight_scale, 1e-9)
        self.prune_threshold, self.weight_scale = prune_threshold, weight_scale
        self.min_effective = check_number("min_effective", min_effective, 0, 1)
        self.min_keep = check_number("min_keep", min_keep, 0, 1)
        self.queue_size = check_count("queue_size", queue_size, 0, MAX_QUEUE)
        self.extra_positives = check_count("extra_positives", extra_positives, 0)
        self.positive_weight = check_number("positive_weight", positive_weight, 1e-9)
        self.intra_mode = check_choice("intra_mode", intra_mode, ("sum", "logit"))
        self.self_logit = check_choice("self_logit", self_logit, ("masked", "zero"))
        if extra_positives and prune_threshold is None:
            warn(
                "extra_positives has no effect with prune_threshold=None: additional positives are influential "
                "samples, and without a threshold no sample is influential"
            )
        uses = {"pruning": ("prune_threshold", prune_threshold), "weighting": ("weight_scale", weight_scale)}
        self.feature_uses = {use: f"{name}=None" for use, (name, value) in uses.items() if value is not None}
        self.queues = Queues(self.queue_size)
        self._last: dict[str, tuple[Tensor | float, ...]] = {}
        self._held_back: list[str] = []
        self._warned = False

    @classmethod
    def youcook2(cls, **options: Any) -> "CrossCLR":
        """The paper's settings for YouCook2, local level, without its queue (``queue_size=5000``)."""
        return cls(**{"weight_scale": 0.0035, "intra_weight": 0.8, **options})

    @classmethod
    def lsmdc(cls, **options: Any) -> "CrossCLR":
        """The paper's settings for LSMDC (its main text also suggests ``queue_size=5000``)."""
        settings = {"weight_scale": 0.0055, "intra_weight": 0.65, "queue_size": 3000, "positive_weight": 0.2}
        return cls(**{**settings, **options})

    def reset(self) -> None:
        """Empty the queues and forget the modalities."""
        self.queues.clear()

    @property
    def stats(self) -> LossStats:
        """What happened in the last call."""
        last = {name: [float(value) for value in values] for name, values in self._last.items()}
        each = {name: LossStats(*values, min_keep_hit=name in self._held_back) for name, values in last.items()}
        means = [sum(values) / len(each) for values in zip(*last.values(), strict=True)]
        return LossStats(*means, min_keep_hit=bool(self._held_back), modalities=each)

    def compute(self, batch: EmbeddedBatch) -> Tensor:
        """Weighted mean over the pairs of (L_x + L_y) / 2."""
        if self.queue_size and self.training:
            self.queues.check(batch)
        anchors = {name: self._anchors(name, batch) for name in batch.embeddings}
        self._last = {name: (*x.stats, 0.0) for name, x in anchors.items() if bool(x.present.any())}
        self._held_back = [name for name, x in anchors.items() if x.held_back]
        total = next(iter(batch.embeddings.values())).new_zeros(())
        for name, x in anchors.items():
            partners = []
            for pair in batch.pairs:
                if name in (pair.x, pair.y):
                    both = x.present if pair.both is None else pair.both
                    weights = pair.weight * x.weights.masked_fill(~both, -torch.inf).softmax(dim=0)
                    extra = None
                    if self.extra_positives:
                        extra = extra_positives(x.features, x.influential & both, self.extra_positives)
                    rows = anchors[pair.y if name == pair.x else pair.x].rows
                    partners.append(Partner(rows, weights, both, extra))
            if partners:
                loss, intra_share = self._loss_of(x, partners, batch)
                self._last[name] = (*x.stats, intra_share)
                total = total + loss
        if self._held_back and not self._warned:
            self._warned = True
            warn(
                f"pruning by prune_by={self.prune_by!r}, prune_threshold={self.prune_threshold:g} would leave fewer "
                f"than min_keep={self.min_keep:g} of modality {' and '.join(self._held_back)} as negatives, so only "
                "the most connected rows were pruned. If all cosines of the features are high, raise prune_threshold "
                "or use prune_by='quantile'. (Shown once.)"
            )
        return total / (2 * sum(pair.weight for pair in batch.pairs) or 1)

    def _anchors(self, name: str, batch: EmbeddedBatch) -> Anchors:
        """Add the batch to the queue of one modality; C and I of (4) over the reference set, weights (5)."""
        rows, mask, ids = batch.embeddings[name], batch.present[name], batch.ids
        features = batch.features.get(name, rows[:, :0].detach())
        embedded, reference, known = rows, features, ids
        if mask is not None:
            embedded, reference, known = rows[mask], features[mask], None if ids is None else ids[mask]
        queue = None  # without a queue, the batch is the reference set
        if self.queue_size and self.training and len(embedded):
            slots = self.queues.of(name).push(reference, embedded, known)
            queue = self.queues.of(name) if len(embedded) < self.queue_size else None
        if queue is None:
            c = connectivity(reference)
        else:
            c = connectivity(queue.features[: queue.filled], queue.total, queue.squares[: queue.filled])
        pruned, held_back = influential(c, self.prune_threshold, self.prune_by, self.min_keep)
        share, older = pruned.float().mean(), []
        if queue is not None:
            for stretch in queue.older(len(embedded)):
                columns = None if ids is None else torch.isin(queue.ids[stretch], ids).nonzero().flatten()
                again = None if columns is None else queue.ids[stretch][columns]
                older.append(OlderRows(queue.embeddings[stretch], ~pruned[stretch], again, columns))
            c, pruned = c[slots], pruned[slots]
        logits = weight_logits(c.to(rows.dtype), self.weight_scale, self.min_effective)
        weights = logits.softmax(dim=0)
        if mask is None:
            mask = torch.ones_like(pruned)
        fill = self.queues.of(name).filled / self.queue_size if name in self.queues else 0.0
        ratio = weights.max() / weights.min() if len(weights) else 1.0
        stats = (share, 1 / (len(weights) * weights.square().sum()), ratio, fill)
        pruned, logits = (torch.zeros_like(mask, dtype=v.dtype).masked_scatter_(mask, v) for v in (pruned, logits))
        return Anchors(rows, features, mask, pruned, logits, tuple(older), held_back, stats)

    def _loss_of(self, x: Anchors, partners: Sequence[Partner], batch: EmbeddedBatch) -> tuple[Tensor, Tensor]:
        """(6) to (9): Σ -w log(P / (P + E + R)) of the anchors, summed over partners, and the mean share of R."""
        ids = repeated(batch.ids)

        def tile(here: slice, x_here: Tensor, *others: Tensor) -> tuple[Tensor, Tensor]:
            y_here, (x_rows, *y_rows) = others[: len(partners)], others[len(partners) :]
            scaled = x_here / self.temperature
            same = here.start if ids is None else ids[here].unsqueeze(1) == ids  # equal ids are never negatives
            intra = self._log_intra(scaled, x_rows, x, batch.ids, here, same) if self.intra_weight else None
            loss, share = x_here.new_zeros(()), x_here.new_zeros(())
            for partner, y, y_i in zip(partners, y_rows, y_here, strict=True):
                logits = scaled @ y.T
                positives = (scaled * y_i).sum(dim=1)  # log δ(x_i, y_i)
                if partner.extra is not None:  # + β Σ_P δ(x_i, y_k)
                    columns = partner.extra[here]
                    more = logits[torch.arange(len(columns)).unsqueeze(1), columns] + math.log(self.positive_weight)
                    more = more.masked_fill(columns < 0, HIDDEN).logsumexp(dim=1)
                    positives = torch.logaddexp(positives, more)
                negatives = log_sum_exp(logits, same, keep=partner.both & ~x.influential)  # log Σ_E δ(x_i, y_k)
                if intra is not None:
                    negatives = torch.logaddexp(negatives, intra)
                    of_all = (intra - torch.logaddexp(negatives, positives)).detach().exp()
                    both = partner.both.to(of_all)
                    share = share + of_all @ both[here] / (both.sum() * len(partners))
                gap = negatives - positives
                loss = loss + partner.weights[here] @ torch.logaddexp(gap, torch.zeros_like(gap))
            return loss, share

        rows = (x.rows, *(partner.rows for partner in partners))
        return tiled_loss(tile, rows, (), self.chunk_size, batch.group)

    def _log_intra(
        self, scaled: Tensor, rows: Tensor, x: Anchors, ids: Tensor | None, here: slice, same: Tensor | int
    ) -> Tensor:
        """(n,) log of λ Σ_R δ(x_i, x_k), or of Σ_R δ(x_i, x_k)^λ, over the batch and the queue."""
        by_logit = self.intra_mode == "logit"
        scaled = scaled * self.intra_weight if by_logit else scaled
        total = log_sum_exp(scaled @ rows.T, same, keep=x.present & ~x.influential)
        if self.self_logit == "zero":
            total = torch.logaddexp(total, torch.zeros_like(total))
        for old in x.older:
            again = None if ids is None or old.ids is None else ids[here].unsqueeze(1) == old.ids
            logits = scaled @ old.rows.to(rows.dtype).T
            total = torch.logaddexp(total, log_sum_exp(logits, again, old.columns, old.keep))
        return total if by_logit else total + math.log(self.intra_weight)

    def extra_repr(self) -> str:
        """The options, for ``print(loss)``."""
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in loss_options("crossclr") if name != "pairs")
