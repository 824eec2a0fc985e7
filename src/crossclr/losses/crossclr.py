"""CrossCLR: the paper's complete loss, with pruning, weighting, queues and multiple positives."""

import math
from typing import Any

from torch import Tensor

from crossclr.losses.base import TemperatureLoss
from crossclr.losses.inputs.embeddings import Call, EmbeddedBatch, check_embeddings, check_features
from crossclr.losses.inputs.options import LARGEST_QUEUE, check_choice, check_count, check_number
from crossclr.losses.inputs.pairs import PairsOption, pairs_of
from crossclr.losses.memory.influence import InfluenceRules
from crossclr.losses.memory.modality import ModalityDict
from crossclr.losses.memory.stats import LossStats, ModalityStats
from crossclr.losses.sums.contrast import Intra, identify
from crossclr.losses.sums.contrast_modalities import Anchors, contrast_modalities
from crossclr.notices import warn

FEW_ANCHORS = 0.1
"""Warn if fewer than this share of a batch's anchors decide the loss."""


class CrossCLR(TemperatureLoss):
    r"""Contrastive loss between modalities that avoids false negatives.

    For modalities x and y and an anchor i that has both, with δ(u, v) = exp(cos(u, v) / temperature):

    .. math::

        L_{x \to y} = -\sum_i w_i \log \frac{\delta(x_i, y_i)}{\delta(x_i, y_i)
              + \sum_{j \ne i,\, x_j \notin I_x} \delta(x_i, y_j)
              + \sum_{k \in Q_x,\, k \ne i,\, x_k \notin I_x} \delta(x_i, x_k)^\lambda}

    The loss of a pair is (L(x→y) + L(y→x)) / 2, and the loss is the mean over the pairs. Connectivity C of a row is its
    mean cosine to the *other* rows of the reference set in **input** space. The reference set is the queue including
    the current batch, or the batch alone without a queue. I_x holds the influential rows, those with high C. They
    probably mean the same as many other rows, so they are never negatives. They stay anchors, with a larger weight w.

    Each modality has its own connectivity, influential rows, weights and queue, computed once over all rows that have
    it. A sample that lacks y is still an intra-modal negative within x. No gradient flows through C, masks or weights.

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
            authors' released file do. ``sum`` is the paper's displayed equation, λ·Σ δ.

            .. warning:: With a queue, ``sum`` collapses the embeddings. A near-copy of the anchor weighs as much as the
               positive, and the model cannot tell the two apart. All embeddings move together until
               ``stats.intra_share`` is near 1 and the loss stays at the logarithm of the number of negatives.
               ``logit`` acts as a margin: at cosine 1 a near-copy has exp(λ/τ), the positive exp(1/τ).
        self_logit: ``masked`` omits the anchor itself from the intra-modal term; ``zero`` counts exp(0) for it, as the
            released file does.
        chunk_size: anchors compared at a time; limits memory to chunk_size × (M·N + queue) and does not change the
            result.
        pairs: which pairs of modalities to compare; see :class:`Loss`.
        fused: also compare each modality with the normalised mean of the others that a sample has. This mean has no
            queue and no input features. As anchors, its rows take the weights and pruning of the modality they are
            compared with and have no intra-modal negatives.

    Inputs of a call:
        As for every :class:`Loss`. Pruning and weighting need the input features of each modality, one row for each
        sample (the mean of a sequence). Samples with equal ids are never negatives of each other, also in the queue.

    Relations:
        With everything off it equals :class:`CLIP` at a fixed temperature. With ``intra_weight=1`` and without pruning
        and weighting it equals :class:`NTXent`.

    References:
        Zolfaghari et al., CrossCLR: Cross-modal Contrastive Learning For Multi-modal Video Representations, ICCV 2021.

    Example:
        >>> import torch
        >>> _ = torch.manual_seed(0)
        >>> loss_fn = CrossCLR(queue_size=100)
        >>> za, zb = torch.randn(8, 16, requires_grad=True), torch.randn(8, 16, requires_grad=True)
        >>> loss = loss_fn(za, zb, a=torch.randn(8, 32), b=torch.randn(8, 24), ids=torch.arange(8))
        >>> loss.backward()
        >>> loss_fn.stats.queue_fill
        0.08
        >>> names = ("video", "audio", "text")
        >>> loss = CrossCLR()(
        ...     {name: torch.randn(8, 16) for name in names},
        ...     features={name: torch.rand(8, 32) for name in names},
        ...     present={"audio": torch.arange(8) < 5},
        ... )
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
        pairs: PairsOption = "all",
        fused: bool = False,
    ) -> None:
        super().__init__(temperature, chunk_size, pairs, fused)
        self.intra_weight = check_number("intra_weight", intra_weight, 0)
        self.rules = InfluenceRules(prune_threshold, prune_by, min_keep, weight_scale, extra_positives)
        self.positive_weight = check_number("positive_weight", positive_weight, 1e-9)
        if extra_positives and prune_threshold is None:
            warn(
                "extra_positives has no effect with prune_threshold=None: additional positives are influential "
                "samples, and without a threshold no sample is influential"
            )
        self.queue_size = check_count("queue_size", queue_size, 0, LARGEST_QUEUE)
        self.intra_mode = check_choice("intra_mode", intra_mode, ("sum", "logit"))
        self.self_logit = check_choice("self_logit", self_logit, ("masked", "zero"))
        self.prune_threshold, self.prune_by, self.min_keep = prune_threshold, prune_by, min_keep
        self.weight_scale, self.extra_positives = weight_scale, extra_positives
        self.modalities = ModalityDict(queue_size, self.rules)
        self._last: dict[str, tuple[Tensor | float | bool, ...]] = {}
        self._warned: set[str] = set()

    @classmethod
    def youcook2(cls, **options: Any) -> "CrossCLR":
        """The paper's settings for YouCook2, local level, without its queue (``queue_size=5000``)."""
        return cls(**{"weight_scale": 0.0035, "intra_weight": 0.8, **options})

    @classmethod
    def lsmdc(cls, **options: Any) -> "CrossCLR":
        """The paper's settings for LSMDC (its main text also suggests ``queue_size=5000``)."""
        settings = {"weight_scale": 0.0055, "intra_weight": 0.65, "queue_size": 3000, "positive_weight": 0.2}
        return cls(**{**settings, **options})

    @property
    def stats(self) -> LossStats:
        """What happened in the last call."""
        return LossStats.mean({name: ModalityStats(*map(_number, last)) for name, last in self._last.items()})

    @property
    def needs_features(self) -> bool:  # type: ignore[override]
        """Whether a call needs the input features."""
        return self.prune_threshold is not None or self.weight_scale is not None

    def reset(self) -> None:
        """Empty the queues and forget the modalities."""
        self.modalities.clear()

    def check(self, call: Call) -> EmbeddedBatch:
        """Check the arguments of a call, also against the contents of the queues."""
        batch = check_embeddings(call)
        if self.needs_features:
            parts = [
                (self.prune_threshold, "pruning", "prune_threshold=None"),
                (self.weight_scale, "weighting", "weight_scale=None"),
            ]
            used = [(what, off) for option, what, off in parts if option is not None]
            needed_for, switch_off = (" and ".join(words) for words in zip(*used, strict=True))
            batch = check_features(call, batch, needed_for, switch_off)
        if self.training:
            for name, rows in batch.embeddings.items():
                own = self.modalities.of(name)
                own.check(
                    call.labels[name], rows, call.feature_labels[name], batch.features.get(name), batch.present[name]
                )
        return batch

    def compute(self, batch: EmbeddedBatch) -> Tensor:
        """Scalar loss of checked unit rows."""
        pairs = pairs_of(batch, self.pair_weights, self.fused)
        anchors = {name: self._anchors(name, batch) for name in batch.embeddings}
        found = contrast_modalities(
            batch, pairs, anchors, 1 / self.temperature, self.chunk_size, positive_weight=self.positive_weight
        )
        self._note(batch, anchors, found.intra_shares)
        return found.loss

    def _anchors(self, name: str, batch: EmbeddedBatch) -> Anchors:
        """One modality as anchors, with its queue and influential rows."""
        rows, own = batch.embeddings[name], self.modalities.of(name)
        influence = own.observe(rows, batch.features.get(name), batch.ids, batch.present[name])
        if not self.intra_weight:
            return Anchors(rows, identify(batch.ids), None, influence)
        by_logit = self.intra_mode == "logit"
        queue = queue_keep = older = None
        same = None
        if influence.slots is not None and own.queue is not None:
            queue = own.queue.embeddings[: own.queue.filled]
            same = identify(batch.ids, own.queue.ids[: own.queue.filled], influence.slots)
            queue_keep = influence.queue_negatives(len(queue), queue.device)
            if 8 * len(influence.slots) > len(queue):  # otherwise skipping these products costs more than it saves
                older = own.queue.older(len(influence.slots))
        intra = Intra(
            weight=1.0 if by_logit else self.intra_weight,
            factor=self.intra_weight if by_logit else 1.0,
            keep=influence.negatives(batch.present[name]),
            zero_self=self.self_logit == "zero",
            queue=queue,
            queue_keep=queue_keep,
            older=older,
        )
        return Anchors(rows, identify(batch.ids) if same is None else same, intra, influence)

    def _note(self, batch: EmbeddedBatch, anchors: dict[str, Anchors], intra_shares: dict[str, Tensor]) -> None:
        """Keep the values of `stats` (as tensors, so that nothing waits for a device) and warn once."""
        self._last, held_back, few = {}, [], math.inf
        for name, own in anchors.items():
            influence, present = own.influence, batch.present[name]
            weights = influence.weights(present, own.rows)
            weights = weights if present is None else weights[present]
            if not len(weights):
                continue
            queue = self.modalities.of(name).queue
            self._last[name] = (
                0.0 if influence.pruned is None else influence.pruned,
                intra_shares.get(name, 0.0),
                weights.max() / weights.min(),
                0.0 if queue is None else queue.filled / queue.size,
                influence.held_back,
            )
            if influence.held_back:
                held_back.append(name)
            if self.weight_scale is not None and "weights" not in self._warned:
                deciding = float(1 / weights.square().sum())  # anchors that decide the mean
                if deciding < FEW_ANCHORS * len(weights):
                    few = min(few, deciding)
        if held_back:
            self._warn_once(
                "pruning",
                f"pruning by prune_by={self.prune_by!r}, prune_threshold={self.prune_threshold:g} would "
                f"leave fewer than min_keep={self.min_keep:g} of modality {' and '.join(held_back)} as "
                "negatives, so only the most connected rows were pruned. If all cosines of the features are high, "
                "raise prune_threshold or use prune_by='quantile'. (Shown once.)",
            )
        if few < math.inf:
            self._warn_once(
                "weights",
                f"weighting by weight_scale={self.weight_scale:g} lets about {max(few, 1):.0f} of the "
                f"{batch.rows} anchors decide the loss. Small batches and features with a mean near zero cause this: "
                "raise weight_scale, or switch weighting off with weight_scale=None. (Shown once.)",
            )

    def _warn_once(self, what: str, message: str) -> None:
        if what not in self._warned:
            self._warned.add(what)
            warn(message)

    def extra_repr(self) -> str:
        """The options, for ``print(loss)``."""
        names = "temperature intra_weight queue_size positive_weight intra_mode self_logit chunk_size"
        options = {name: getattr(self, name) for name in names.split()} | vars(self.rules)
        return ", ".join(f"{name}={value!r}" for name, value in options.items())


def _number(value: Tensor | float) -> Any:
    return value.item() if isinstance(value, Tensor) else value
