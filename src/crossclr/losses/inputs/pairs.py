"""Which pairs of modalities a loss compares, and with which weight."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from crossclr.losses.inputs.embeddings import EmbeddedBatch, either_mask
from crossclr.losses.inputs.options import check_number

PairsOption = str | Mapping[str, Sequence[str] | Mapping[str, float]]
Weights = dict[tuple[str, str], float]


@dataclass(frozen=True)
class Pair:
    """One modality and its partner: another modality, or the mean of all others (``second`` is then None)."""

    first: str  # name of the first modality
    second: str | None  # name of the second; None: the mean of all other modalities
    weight: float  # share in the weighted mean over the pairs
    x: Tensor  # (N, D) unit rows of the first
    y: Tensor  # (N, D) unit rows of the second
    anchors: Tensor | None  # (N,) which samples have both; None: all of them

    def rows(self, ids: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
        """x, y and ids of the samples that have both modalities."""
        if self.anchors is None:
            return self.x, self.y, ids
        return self.x[self.anchors], self.y[self.anchors], None if ids is None else ids[self.anchors]


def check_pairs(pairs: PairsOption) -> Weights | None:
    """The option ``pairs`` as a weight for each pair; None stands for all pairs.

    Example:
        >>> check_pairs({"text": ["video", "audio"]})
        {('text', 'video'): 1.0, ('text', 'audio'): 1.0}
        >>> check_pairs({"text": {"video": 1.0, "audio": 0.5}})
        {('text', 'video'): 1.0, ('text', 'audio'): 0.5}
    """
    if isinstance(pairs, str) and pairs == "all":
        return None
    if not isinstance(pairs, Mapping) or not pairs:
        raise ValueError(f"pairs must be 'all' or a mapping such as {{'text': ['video', 'audio']}}, got {pairs!r}")
    weights: Weights = {}
    for x, partners in pairs.items():
        if isinstance(partners, str) or not isinstance(partners, Mapping | Sequence):
            raise ValueError(f"pairs[{x!r}] must list the partners of {x!r}, got {partners!r}")
        for y in partners:
            if x == y or (x, y) in weights or (y, x) in weights:
                raise ValueError(f"pairs has {x!r} with {y!r}: name two different modalities, and each pair once")
            given = partners[y] if isinstance(partners, Mapping) else 1.0
            weights[x, y] = check_number(f"the weight of pair {x!r}, {y!r}", given, 0, above=True)
    if not weights:
        raise ValueError("pairs names no pair of modalities")
    return weights


def pairs_of(batch: EmbeddedBatch, weights: Weights | None, fused: bool) -> list[Pair]:
    """The chosen pairs that at least one sample of the batch has."""
    names = list(batch.embeddings)
    if weights is None:
        weights = dict.fromkeys(itertools.combinations(names, 2), 1.0)
    found = []
    for (x, y), weight in weights.items():
        for name in (x, y):
            if name not in names:
                raise ValueError(f"pairs names the modality {name!r}, but the batch has {names}")
        found.append(Pair(x, y, weight, batch.embeddings[x], batch.embeddings[y], batch.both(x, y)))
    if fused:
        found += [_fused_pair(batch, name) for name in names]
    return [pair for pair in found if pair.anchors is None or bool(pair.anchors.any())]


def _fused_pair(batch: EmbeddedBatch, name: str) -> Pair:
    """A modality and the normalised mean of the others; absent rows are zeros and add nothing."""
    others = [other for other in batch.embeddings if other != name]
    total = torch.stack([batch.embeddings[other] for other in others]).sum(dim=0)
    anchors = batch.present[name]
    if all(batch.present[other] is not None for other in others):
        has_other = torch.stack([mask for other in others if (mask := batch.present[other]) is not None]).any(dim=0)
        anchors = either_mask(anchors, has_other)
    mean = total / torch.linalg.vector_norm(total, dim=1, keepdim=True).clamp_min(1e-12)
    return Pair(name, None, 1.0, batch.embeddings[name], mean, anchors)


def mean_over_pairs(weighted: Sequence[Tensor], weight: float, pairs: Sequence[Pair], batch: EmbeddedBatch) -> Tensor:
    """The sum of weighted losses divided by the sum of weights; 0 if the batch has no pair.

    A modality in no pair gets a gradient of zero instead of None, because DistributedDataParallel waits for the
    gradient of every parameter.
    """
    used = {name for pair in pairs for name in (batch.embeddings if pair.second is None else (pair.first, pair.second))}
    idle = [0 * rows.sum() for name, rows in batch.embeddings.items() if name not in used]
    if not weighted:
        return torch.stack(idle).sum()
    mean = sum(weighted[1:], weighted[0]) / weight
    return sum(idle, mean)
