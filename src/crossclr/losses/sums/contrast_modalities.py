"""Softmax losses with intra-modal negatives for any number of modalities: `CrossCLR` and `NTXent`."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from crossclr.losses.inputs.embeddings import EmbeddedBatch
from crossclr.losses.inputs.pairs import Pair, mean_over_pairs
from crossclr.losses.memory.influence import InfluenceRules
from crossclr.losses.memory.modality import Influence
from crossclr.losses.sums.contrast import Contrast, Identity, Intra, Term, contrast

NO_INFLUENCE = Influence(InfluenceRules(None, "relative", 0.0, None, 0))
"""No pruning, and equal weights for all anchors."""


@dataclass(frozen=True)
class Anchors:
    """One modality in the role of the anchors."""

    rows: Tensor  # (N, D) unit rows
    same: Identity | None  # rows with equal ids, in the batch and in the modality's queue
    intra: Intra | None  # intra-modal negatives; None: there are none
    influence: Influence = NO_INFLUENCE  # influential rows and anchor weights


@dataclass(frozen=True)
class Contrasted:
    """The loss, and the intra-modal share of the denominator by modality."""

    loss: Tensor
    intra_shares: dict[str, Tensor]


def contrast_modalities(
    batch: EmbeddedBatch,
    pairs: Sequence[Pair],
    anchors: Mapping[str, Anchors],
    scale: float,
    chunk_size: int | None,
    positive_weight: float = 1.0,
) -> Contrasted:
    """Weighted mean over the pairs of (L(x→y) + L(y→x)) / 2.

    The intra-modal sum of an anchor is computed once and shared by all its terms. The second part of a "fused" pair is
    the mean of the other modalities, which has neither a queue nor input features. As anchors, its rows take the
    influence of the pair's first modality and have no intra-modal negatives.
    """
    partners: dict[str, list[tuple[Tensor, Term]]] = {name: [] for name in anchors}
    apart: list[tuple[Pair, Term]] = []  # fused rows as anchors
    for pair in pairs:
        term = _term(pair, anchors[pair.first].influence)
        partners[pair.first].append((pair.y, term))
        if pair.second is None:
            apart.append((pair, term))
        else:
            partners[pair.second].append((pair.x, _term(pair, anchors[pair.second].influence)))
    extra_bias = math.log(positive_weight)
    by_temperature = next(iter(batch.embeddings.values())).new_tensor(scale)
    losses: list[Tensor] = []
    intra_shares: dict[str, Tensor] = {}
    for name, own in anchors.items():
        if not partners[name]:
            continue
        rows, terms = zip(*partners[name], strict=True)
        what = Contrast(terms, own.same, own.intra, extra_bias, chunk_size)
        loss, intra_shares[name] = contrast(own.rows, rows, by_temperature, what)
        losses.append(loss)
    for pair, term in apart:
        what = Contrast((term,), anchors[pair.first].same, None, extra_bias, chunk_size)
        losses.append(contrast(pair.y, [pair.x], by_temperature, what)[0])
    weight = 2 * sum(pair.weight for pair in pairs)  # every pair has two directions
    return Contrasted(mean_over_pairs(losses, weight, pairs, batch), intra_shares)


def _term(pair: Pair, influence: Influence) -> Term:
    """The pair seen from the modality with this influence; the term's weights sum to the pair's weight."""
    weights = influence.weights(pair.anchors, pair.x)
    return Term(
        weights=weights if pair.weight == 1 else weights * pair.weight,
        anchors=pair.anchors,
        keep=influence.negatives(pair.anchors),
        extra=influence.positives(pair.anchors),
    )
