"""CrossCLR: the paper's loss in the paper's order, with pruning, weights, queues and multiple positives."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from crossclr.losses import names
from crossclr.losses.base import EmbeddedBatch, LossStats, TemperatureLoss
from crossclr.losses.influence import centred, connectivity, extra_positives, influential, weight_logits
from crossclr.losses.queue import Queues
from crossclr.losses.tiles import HIDDEN, log_sum_exp, tiled_loss
from crossclr.notices import warn

MAX_QUEUE = 10_000_000  # rows; with 384 channels these take 15 GB


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
    centred: Tensor  # (N, Dx) features without their mean; without columns if they are not used
    copy_cosine: float  # of two near-copies, after the mean is removed
    older: tuple[OlderRows, ...]  # of the queue
    held_back: bool  # whether ``min_keep`` limited the pruning
    stats: tuple[Tensor | float, ...]  # the first values of LossStats


@dataclass(frozen=True)
class Partner:
    """Another modality, as the anchors see it."""

    rows: Tensor  # (N, D) unit rows
    weights: Tensor  # (N,) weights of the anchors; their sum is the weight of the pair
    both: Tensor  # (N,) which samples have both modalities
    keep: Tensor  # (N,) which rows serve as negatives
    extra: Tensor | None  # (N, k) additional positives of each anchor, -1 for none


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
        near_copies: this share of the most similar pairs of the batch, by the cosine of their input features without
            the mean of the batch and in any modality, leaves the intra-modal sum; 0 keeps all. Older rows of a queue
            always stay.
        shared_positives: ε, this share of the target goes from an anchor's partner to the partners of samples with
            similar input features, in proportion to exp(cosine / ``sharing_temperature``); 0 gives all to its own.
        sharing_temperature: σ of the shared targets.
        weight_by: ``relative`` weighs by (C / ΣC) / κ, as the pseudo-code; ``absolute`` by C / κ, as the equation.
        self_connectivity: whether C counts the sample itself, as the equation does.
        strict_threshold: whether rows at the threshold are pruned too, as in Algorithm 1.
        positives_in: whether additional positives count in ``both`` parts of the ratio or in the ``numerator`` alone,
            as printed; then the loss has no lower bound.
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
        positive_weight: float = 0.02,
        prune_by: str = "relative",
        min_keep: float = 0.25,
        intra_mode: str = "logit",
        self_logit: str = "masked",
        min_effective: float = 0.5,
        near_copies: float = 0.0,
        shared_positives: float = 0.0,
        sharing_temperature: float = 0.05,
        weight_by: str = "relative",
        self_connectivity: bool = False,
        strict_threshold: bool = False,
        positives_in: str = "both",
        chunk_size: int | None = None,
        pairs: names.PairsOption = "all",
    ) -> None:
        super().__init__(temperature, chunk_size, pairs)
        self.intra_weight = names.check_number("intra_weight", intra_weight, 0)
        self.prune_by = names.check_choice("prune_by", prune_by, ("relative", "absolute", "quantile"))
        if prune_threshold is not None:
            names.check_number("prune_threshold", prune_threshold, -1 if prune_by == "absolute" else 0, 1)
        if weight_scale is not None:
            names.check_number("weight_scale", weight_scale, 1e-9)
        self.prune_threshold, self.weight_scale = prune_threshold, weight_scale
        self.min_effective = names.check_number("min_effective", min_effective, 0, 1)
        self.min_keep = names.check_number("min_keep", min_keep, 0, 1)
        self.queue_size = names.check_count("queue_size", queue_size, 0, MAX_QUEUE)
        self.extra_positives = names.check_count("extra_positives", extra_positives, 0)
        self.positive_weight = names.check_number("positive_weight", positive_weight, 1e-9)
        self.intra_mode = names.check_choice("intra_mode", intra_mode, ("sum", "logit"))
        self.self_logit = names.check_choice("self_logit", self_logit, ("masked", "zero"))
        self.near_copies = names.check_number("near_copies", near_copies, 0, 1)
        self.shared_positives = names.check_number("shared_positives", shared_positives, 0, 1)
        self.sharing_temperature = names.check_number("sharing_temperature", sharing_temperature, 1e-5)
        self.weight_by = names.check_choice("weight_by", weight_by, ("relative", "absolute"))
        self.self_connectivity = names.check_choice("self_connectivity", self_connectivity, (False, True))
        self.strict_threshold = names.check_choice("strict_threshold", strict_threshold, (False, True))
        self.positives_in = names.check_choice("positives_in", positives_in, ("both", "numerator"))
        if extra_positives and prune_threshold is None:
            warn(
                "extra_positives has no effect with prune_threshold=None: additional positives are influential "
                "samples, and without a threshold no sample is influential"
            )
        uses = {
            "pruning": ("prune_threshold=None", prune_threshold is not None),
            "weighting": ("weight_scale=None", weight_scale is not None),
            "near-copies": ("near_copies=0", near_copies > 0 and intra_weight > 0),
            "shared positives": ("shared_positives=0", shared_positives > 0),
        }
        self.feature_uses = {use: switch_off for use, (switch_off, used) in uses.items() if used}
        self.queues = Queues(self.queue_size)
        self._last: dict[str, tuple[Tensor | float, ...]] = {}
        self._held_back: list[str] = []
        self._warned = False

    @classmethod
    def youcook2(cls, **options: Any) -> "CrossCLR":
        """The paper's settings for YouCook2, local level, without its queue (``queue_size=5000``).

        Differs from ``printed("equation")`` in relative pruning that keeps a quarter, weights that cannot explode, λ on
        the logits, C without the sample itself, positives in both parts of the ratio, and no queue.
        """
        return cls(**{**names.PAPER["youcook2"], **options})

    @classmethod
    def lsmdc(cls, **options: Any) -> "CrossCLR":
        """The paper's settings for LSMDC (its main text also suggests ``queue_size=5000``).

        Differs from ``printed("equation")`` like `youcook2`, in κ, λ and β, and has the queue of the table.
        """
        return cls(**{**names.PAPER["lsmdc"], **options})

    @classmethod
    def printed(cls, reading: str, **options: Any) -> "CrossCLR":
        """A literal reading of the paper, with YouCook2's settings: "equation", "algorithm" or "pseudo-code".

        All have no limits on pruning and weights, and additional positives in the numerator alone.
        ``equation``: C with the sample itself, C > γ, weights exp(C / κ), λ · Σ δ, the queue of the table.
        ``algorithm``: the same, and rows with C = γ are pruned too.
        ``pseudo-code``: C / max C ≥ γ is pruned, one scale for λ and κ, on the logits, exp(0) for the anchor; no queue.

        In all, weights are divided by their sum, because exp(C / κ) overflows float32, an anchor is no negative of its
        own, and its weight is that of its modality (the pseudo-code weighs texts by videos).
        """
        return cls(**{**names.printed_options(reading), **options})

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
                    partners.append(Partner(rows, weights, both, both & ~x.influential, extra))
            if partners:
                loss, intra_share = self._loss_of(x, partners, batch, list(anchors.values()))
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
        total = squares = None
        if queue is not None:
            reference, total, squares = queue.features[: queue.filled], queue.total, queue.squares[: queue.filled]
        c = connectivity(reference, total, squares, with_self=self.self_connectivity)
        pruned, held_back = influential(c, self.prune_threshold, self.prune_by, self.min_keep, self.strict_threshold)
        share, older = pruned.float().mean(), []
        if queue is not None:
            for stretch in queue.older(len(embedded)):
                columns = None if ids is None else torch.isin(queue.ids[stretch], ids).nonzero().flatten()
                again = None if columns is None else queue.ids[stretch][columns]
                older.append(OlderRows(queue.embeddings[stretch], ~pruned[stretch], again, columns))
            c, pruned = c[slots], pruned[slots]
        logits = weight_logits(c.to(rows.dtype), self.weight_scale, self.min_effective, self.weight_by)
        weights = logits.softmax(dim=0)
        if mask is None:
            mask = torch.ones_like(pruned)
        fill = self.queues.of(name).filled / self.queue_size if name in self.queues else 0.0
        ratio = weights.max() / weights.min() if len(weights) else 1.0
        stats = (share, 1 / (len(weights) * weights.square().sum()), ratio, fill)
        pruned, logits = (torch.zeros_like(mask, dtype=v.dtype).masked_scatter_(mask, v) for v in (pruned, logits))
        similar = centred(features, mask, self.near_copies) if self.near_copies or self.shared_positives else None
        similar = similar or (features[:, :0], math.inf)
        return Anchors(rows, features, mask, pruned, logits, *similar, tuple(older), held_back, stats)

    def _loss_of(
        self, x: Anchors, partners: Sequence[Partner], batch: EmbeddedBatch, modalities: Sequence[Anchors]
    ) -> tuple[Tensor, Tensor]:
        """(6) to (9): the weighted loss of the anchors, summed over partners, and the mean share of R in it."""
        ids = batch.ids if batch.ids is not None and batch.repeats else None
        labels = torch.arange(batch.rows, device=x.rows.device) if ids is None else ids

        def tile(here: slice, x_here: Tensor, *others: Tensor) -> tuple[Tensor, Tensor]:
            y_here, (x_rows, *y_rows) = others[: len(partners)], others[len(partners) :]
            same: Tensor | int = here.start  # equal ids are never negatives; the diagonal is cheaper than a mask
            copies, targets = same, None
            if ids is not None or self.near_copies or self.shared_positives:
                same = copies = labels[here].unsqueeze(1) == labels
                for other in modalities if self.near_copies else ():
                    copies = copies | (other.centred[here] @ other.centred.T >= other.copy_cosine)
                if self.shared_positives:
                    targets = (x.centred[here] @ x.centred.T / self.sharing_temperature).masked_fill(same, HIDDEN)
            intra = self._log_intra(x_here, x_rows, x, batch.ids, here, copies) if self.intra_weight else None
            loss, share = x_here.new_zeros(()), x_here.new_zeros(())
            for partner, y, y_i in zip(partners, y_rows, y_here, strict=True):
                losses, shares = self._log_ratio(x_here, y, y_i, partner, here, same, intra, targets)
                both = partner.both.to(losses)
                loss = loss + partner.weights[here] @ losses
                share = share + shares.detach() @ both[here] / (both.sum() * len(partners))
            return loss, share

        rows = (x.rows, *(partner.rows for partner in partners))
        return tiled_loss(tile, rows, (), self.chunk_size, batch.group)

    def _log_ratio(
        self,
        x_i: Tensor,
        y: Tensor,
        y_i: Tensor,
        partner: Partner,
        here: slice,
        same: Tensor | int,
        intra: Tensor | None,
        targets: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """(n,) -log P / (P + E + R) of some anchors, with P shared if there are ``targets``, and the share of R."""
        scale, logits = 1 / self.temperature, self.scores(x_i, y, 1 / self.temperature)
        log_p = positive = self.paired(x_i, y_i, scale)  # log δ(x_i, y_i)
        if partner.extra is not None:  # + β Σ_P δ(x_i, y_k)
            columns = partner.extra[here]
            more = logits[torch.arange(len(columns)).unsqueeze(1), columns] + math.log(self.positive_weight)
            log_p = torch.logaddexp(positive, more.masked_fill(columns < 0, HIDDEN).logsumexp(dim=1))
        counted = log_p if self.positives_in == "both" else positive  # in the denominator
        negatives = log_sum_exp(logits, same, keep=partner.keep)  # log Σ_E δ(x_i, y_k)
        negatives = negatives if intra is None else torch.logaddexp(negatives, intra)
        losses = torch.logaddexp(negatives - log_p, counted - log_p)
        if targets is not None:
            q = targets.masked_fill(~partner.keep, HIDDEN)
            q = q.softmax(dim=1).mul((q > HIDDEN).any(dim=1, keepdim=True)).to(x_i.dtype)
            losses = losses + self.shared_positives * (
                q.sum(dim=1) * log_p - (q * self.scores(x_i, y, scale)).sum(dim=1)
            )
        share = torch.zeros_like(losses) if intra is None else (intra - torch.logaddexp(negatives, counted)).exp()
        return losses, share

    def _log_intra(
        self, x_i: Tensor, rows: Tensor, x: Anchors, ids: Tensor | None, here: slice, hide: Tensor | int
    ) -> Tensor:
        """(n,) log of λ Σ_R δ(x_i, x_k), or of Σ_R δ(x_i, x_k)^λ, over the batch and the queue."""
        by_logit = self.intra_mode == "logit"
        scale = (self.intra_weight if by_logit else 1.0) / self.temperature
        total = log_sum_exp(self.scores(x_i, rows, scale), hide, keep=x.present & ~x.influential)
        if self.self_logit == "zero":
            total = torch.logaddexp(total, torch.zeros_like(total))
        for old in x.older:
            again = None if ids is None or old.ids is None else ids[here].unsqueeze(1) == old.ids
            logits = self.scores(x_i, old.rows.to(rows.dtype), scale)
            total = torch.logaddexp(total, log_sum_exp(logits, again, old.columns, old.keep))
        return total if by_logit else total + math.log(self.intra_weight)

    def extra_repr(self) -> str:
        """The options, for ``print(loss)``."""
        return ", ".join(
            f"{name}={getattr(self, name)!r}" for name in names.loss_options("crossclr") if name != "pairs"
        )
