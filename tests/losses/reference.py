"""The losses once more, as plain loops over numbers: slow, obvious, and written apart from the code they check.

Values are float64 tensors of no dimension, so that autograd gives the gradients of the loops too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from scipy.optimize import brentq
from torch import Tensor

TIE = 1e-6  # connectivities that differ by less are equal


def unit(vector: Tensor) -> Tensor:
    return vector / (vector * vector).sum().sqrt()


def cosine(x: Tensor, y: Tensor) -> Tensor:
    return (unit(x) * unit(y)).sum()


@dataclass
class Row:
    """One sample in one modality, in the batch or in the reference queue."""

    x: Tensor  # input features
    z: Tensor  # embedding
    id: int
    born: tuple[int, int]  # step and index: who is who


@dataclass
class ReferenceCrossCLR:
    temperature: float = 0.03
    intra_weight: float = 0.8
    prune_threshold: float | None = 0.9
    weight_scale: float | None = 0.0035
    queue_size: int = 0
    extra_positives: int = 0
    positive_weight: float = 0.02
    prune_by: str = "relative"
    min_keep: float = 0.25
    intra_mode: str = "logit"
    self_logit: str = "masked"
    min_effective: float = 0.5
    near_copies: float = 0.0
    shared_positives: float = 0.0
    sharing_temperature: float = 0.05
    weight_by: str = "relative"
    self_connectivity: bool = False
    strict_threshold: bool = False
    positives_in: str = "both"
    pairs: dict[str, dict[str, float]] | None = None
    queues: dict[str, list[Row]] = field(default_factory=dict)
    step: int = 0
    pruned_shares: dict[str, float] = field(default_factory=dict)
    intra_shares: dict[str, float] = field(default_factory=dict)
    similar: dict[str, dict[tuple[int, int], float]] = field(default_factory=dict)
    copies: set[tuple[int, int]] = field(default_factory=set)

    def __call__(self, za: Tensor, zb: Tensor, a: Tensor, b: Tensor, ids: list[int] | None) -> Tensor:
        return self.of({"a": za, "b": zb}, {"a": a, "b": b}, ids)

    def of(
        self,
        embeddings: dict[str, Tensor],
        features: dict[str, Tensor],
        ids: list[int] | None,
        present: dict[str, list[bool]] | None = None,
    ) -> Tensor:
        batch = batch_of(embeddings, features, ids, present or {}, self.step)
        self.step += 1
        reference = {}
        for name, rows in batch.items():
            reference[name] = list(rows.values())
            if self.queue_size:
                older = [Row(r.x, r.z.detach(), r.id, r.born) for r in self.queues.get(name, [])]
                joined = older + reference[name]
                reference[name] = joined[-max(self.queue_size, len(rows)) :]
                self.queues[name] = joined[-self.queue_size :]
        score = {name: self.connectivity(rows) for name, rows in reference.items()}
        pruned = {name: self.prune(score[name]) for name in batch}
        self.similar = {name: centred_cosines(rows) for name, rows in batch.items()}
        self.copies = {pair for cosines in self.similar.values() for pair in most_similar(cosines, self.near_copies)}
        self.pruned_shares = {name: len(pruned[name]) / len(rows) for name, rows in reference.items() if rows}

        shares: dict[str, list[float]] = {name: [] for name in batch}
        total, weight_sum = torch.zeros((), dtype=torch.float64), 0.0
        for x, y, weight in self.chosen_pairs(list(batch)):
            both = [i for i in batch[x] if i in batch[y]]
            if not both:
                continue
            there, share = self.term(both, batch[x], batch[y], reference[x], score[x], pruned[x], self.similar[x])
            shares[x].append(share)
            back, share = self.term(both, batch[y], batch[x], reference[y], score[y], pruned[y], self.similar[y])
            shares[y].append(share)
            total, weight_sum = total + weight * (there + back) / 2, weight_sum + weight
        self.intra_shares = {name: sum(found) / len(found) for name, found in shares.items() if found}
        return total / weight_sum if weight_sum else total

    def chosen_pairs(self, names: list[str]) -> list[tuple[str, str, float]]:
        if self.pairs is not None:
            return [(x, y, weight) for x, others in self.pairs.items() for y, weight in others.items()]
        return [(x, y, 1.0) for i, x in enumerate(names) for y in names[i + 1 :]]

    def connectivity(self, rows: list[Row]) -> dict[tuple[int, int], float]:
        score = {}
        for row in rows:
            others = [
                float((unit(row.x) * unit(r.x)).sum()) for r in rows if self.self_connectivity or r.born != row.born
            ]
            score[row.born] = sum(others) / len(others) if others else 0.0
        return score

    def term(
        self,
        both: list[int],
        own: dict[int, Row],
        other: dict[int, Row],
        reference: list[Row],
        score: dict[tuple[int, int], float],
        pruned: set[tuple[int, int]],
        similar: dict[tuple[int, int], float],
    ) -> tuple[Tensor, float]:
        """L(x→y) over the samples that have both, and the intra-modal share of its denominators."""
        losses, intra_shares = [], []
        for i in both:
            anchor = own[i]
            delta = {j: torch.exp(cosine(anchor.z, other[j].z) / self.temperature) for j in both}
            candidates = [j for j in both if j != i and own[j].born in pruned]
            candidates.sort(key=lambda j: -float(cosine(own[i].x, own[j].x)))
            more = sum(self.positive_weight * delta[j] for j in candidates[: self.extra_positives])
            numerator = delta[i] + more
            without_intra = numerator if self.positives_in == "both" else delta[i]
            negatives = [j for j in both if j != i and own[j].id != anchor.id and own[j].born not in pruned]
            for j in negatives:
                without_intra = without_intra + delta[j]
            denominator = without_intra
            if self.intra_weight:
                denominator = denominator + self.intra_sum(i, anchor, reference, pruned)
            targets = {j: math.exp((similar[i, j] - 1) / self.sharing_temperature) for j in negatives}
            loss = torch.log(denominator / numerator)
            if self.shared_positives and targets:
                others = sum(t * torch.log(denominator / delta[j]) for j, t in targets.items()) / sum(targets.values())
                loss = (1 - self.shared_positives) * loss + self.shared_positives * others
            losses.append(loss)
            intra_shares.append(1 - float(without_intra.detach() / denominator.detach()))
        weights = self.weights([score[own[i].born] for i in both], [score[row.born] for row in own.values()])
        loss = sum(w * one for w, one in zip(weights, losses, strict=True))
        return loss, sum(intra_shares) / len(intra_shares)

    def intra_sum(self, i: int, anchor: Row, reference: list[Row], pruned: set[tuple[int, int]]) -> Tensor:
        total = torch.zeros((), dtype=torch.float64)
        for r in reference:
            if r.born == anchor.born:
                if self.self_logit == "zero":
                    total = total + (self.intra_weight if self.intra_mode == "sum" else 1.0)
                continue
            if r.id == anchor.id or r.born in pruned:
                continue
            if r.born[0] == anchor.born[0] and (i, r.born[1]) in self.copies:
                continue
            logit = cosine(anchor.z, r.z) / self.temperature
            if self.intra_mode == "sum":
                total = total + self.intra_weight * torch.exp(logit)
            else:
                total = total + torch.exp(self.intra_weight * logit)
        return total

    def weights(self, scores: list[float], of_the_modality: list[float]) -> list[float]:
        relative = self.weight_by == "relative"
        if self.weight_scale is None or (relative and sum(of_the_modality) <= 1e-6 * len(of_the_modality)):
            return [1 / len(scores)] * len(scores)
        unit_of_c = sum(of_the_modality) if relative else 1.0

        def softmax(values: list[float], log_scale: float) -> list[float]:
            raised = [s / unit_of_c / math.exp(log_scale) for s in values]
            exps = [math.exp(r - max(raised)) for r in raised]
            return [e / sum(exps) for e in exps]

        def lacking(log_scale: float) -> float:
            w = softmax(of_the_modality, log_scale)
            return 1 / (len(w) * sum(one**2 for one in w)) - self.min_effective

        start = math.log(self.weight_scale)
        enough = start if lacking(start) >= 0 else brentq(lacking, start, 40.0, xtol=1e-13)
        return softmax(scores, enough)

    def prune(self, score: dict[tuple[int, int], float]) -> set[tuple[int, int]]:
        values = sorted(score.values())
        if self.prune_threshold is None or not values or values[-1] <= TIE:
            return set()
        if self.prune_by == "relative":
            level = self.prune_threshold * values[-1]
        elif self.prune_by == "absolute":
            level = self.prune_threshold
        else:
            place = self.prune_threshold * (len(values) - 1)
            low = math.floor(place)
            high = min(low + 1, len(values) - 1)
            level = values[low] + (place - low) * (values[high] - values[low])
        chosen = {k for k, c in score.items() if c > level + (-TIE if self.strict_threshold else TIE)}
        allowed = len(values) - math.ceil(self.min_keep * len(values))
        if len(chosen) > allowed:  # all that are equal to the first that must stay do so too
            chosen = {k for k in chosen if score[k] > values[-1 - allowed] + TIE}
        return chosen


def batch_of(
    embeddings: dict[str, Tensor],
    features: dict[str, Tensor],
    ids: list[int] | None,
    present: dict[str, list[bool]],
    step: int,
) -> dict[str, dict[int, Row]]:
    """Modality -> sample -> row, of the samples that have it."""
    batch: dict[str, dict[int, Row]] = {}
    for name, z in embeddings.items():
        batch[name] = {}
        for i in range(len(z)):
            if present.get(name, [True] * len(z))[i]:
                known = ids[i] if ids is not None else -(10**6) * (step + 1) - i
                batch[name][i] = Row(features[name][i], z[i], known, (step, i))
    return batch


def centred_cosines(rows: dict[int, Row]) -> dict[tuple[int, int], float]:
    """Cosines of the samples' unit features after their mean is removed; 0 where nothing is left."""
    if not rows:
        return {}
    mean = sum(unit(row.x) for row in rows.values()) / len(rows)
    left = {i: unit(row.x) - mean for i, row in rows.items()}
    lengths = {i: float((v * v).sum().sqrt()) for i, v in left.items()}
    return {
        (i, j): float((left[i] * left[j]).sum()) / (lengths[i] * lengths[j])
        if min(lengths[i], lengths[j]) > 1e-5
        else 0.0
        for i in rows
        for j in rows
    }


def most_similar(cosines: dict[tuple[int, int], float], share: float) -> list[tuple[int, int]]:
    """The share of the ordered pairs of two samples with the highest cosines; all that are equal to the last one."""
    pairs = sorted(((c, pair) for pair, c in cosines.items() if pair[0] != pair[1]), reverse=True)
    count = int(share * len(pairs))
    return [pair for c, pair in pairs if count and c >= max(0.0, pairs[count - 1][0]) - TIE and c > TIE]


def mean_over_pairs(
    pair_loss: Callable[..., Tensor],
    embeddings: dict[str, Tensor],
    ids: list[int],
    present: dict[str, list[bool]],
    pairs: dict[str, dict[str, float]] | None = None,
) -> Tensor:
    """Any loss of a pair, over the samples that have both, as a weighted mean over the pairs."""
    batch = batch_of(embeddings, embeddings, ids, present, 0)
    chosen = ReferenceCrossCLR(pairs=pairs).chosen_pairs(list(batch))
    sides = [(batch[x], batch[y], weight) for x, y, weight in chosen]
    total, weight_sum = torch.zeros((), dtype=torch.float64), 0.0
    for own, other, weight in sides:
        both = [i for i in own if i in other]
        if both:
            x, y = (torch.stack([rows[i].z for i in both]) for rows in (own, other))
            total = total + weight * pair_loss(x, y, [ids[i] for i in both])
            weight_sum += weight
    return total / weight_sum if weight_sum else total


def similarities(za: Tensor, zb: Tensor, temperature: float) -> list[list[Tensor]]:
    return [[cosine(x, y) / temperature for y in zb] for x in za]


def clip(za: Tensor, zb: Tensor, ids: list[int], temperature: float = 0.07) -> Tensor:
    s = similarities(za, zb, temperature)
    total = torch.zeros((), dtype=za.dtype)
    n = len(za)
    for i in range(n):
        others = [j for j in range(n) if ids[j] != ids[i]]
        row = torch.exp(s[i][i]) + sum(torch.exp(s[i][j]) for j in others)
        column = torch.exp(s[i][i]) + sum(torch.exp(s[j][i]) for j in others)
        total = total + (torch.log(row) - s[i][i]) / 2 + (torch.log(column) - s[i][i]) / 2
    return total / n


def ntxent(za: Tensor, zb: Tensor, ids: list[int], temperature: float = 0.03) -> Tensor:
    views = list(za) + list(zb)
    names = list(ids) + list(ids)
    n = len(za)
    total = torch.zeros((), dtype=za.dtype)
    for i in range(2 * n):
        positive = torch.exp(cosine(views[i], views[(i + n) % (2 * n)]) / temperature)
        negatives = [torch.exp(cosine(views[i], views[j]) / temperature) for j in range(2 * n) if names[j] != names[i]]
        total = total + torch.log((positive + sum(negatives)) / positive)
    return total / (2 * n)


def maxmargin(za: Tensor, zb: Tensor, ids: list[int], margin: float = 0.2) -> Tensor:
    n = len(za)
    s = similarities(za, zb, 1.0)
    total = torch.zeros((), dtype=za.dtype)
    for i in range(n):
        for j in range(n):
            if ids[i] != ids[j]:
                total = total + torch.relu(margin + s[i][j] - s[i][i]) + torch.relu(margin + s[i][j] - s[j][j])
    return total / n**2


def milnce(za: Tensor, zb: Tensor, ids: list[int], temperature: float = 0.03) -> Tensor:
    n = len(za)
    s = similarities(za, zb, temperature)
    total = torch.zeros((), dtype=za.dtype)
    for i in range(n):
        bag = sum(torch.exp(s[i][j]) for j in range(n) if ids[j] == ids[i])
        negatives = sum(torch.exp(s[i][j]) + torch.exp(s[j][i]) for j in range(n) if ids[j] != ids[i])
        total = total + torch.log((bag + negatives) / bag)
    return total / n


def dcl(za: Tensor, zb: Tensor, ids: list[int], temperature: float = 0.03, prior: float = 0.1) -> Tensor:
    n = len(za)
    s = similarities(za, zb, temperature)
    total = torch.zeros((), dtype=za.dtype)
    for transposed in (False, True):
        for i in range(n):
            positive = torch.exp(s[i][i])
            others = [j for j in range(n) if ids[j] != ids[i]]
            if not others:
                continue
            negative = sum(torch.exp(s[j][i] if transposed else s[i][j]) for j in others)
            count = len(others)
            corrected = (negative - count * prior * positive) / (1 - prior)
            floor = torch.tensor(count * math.exp(-1 / temperature), dtype=za.dtype)
            total = total + torch.log((positive + torch.maximum(corrected, floor)) / positive) / 2
    return total / n


def siglip(za: Tensor, zb: Tensor, ids: list[int], temperature: float = 0.1, bias: float = -10.0) -> Tensor:
    n = len(za)
    s = similarities(za, zb, temperature)
    total = torch.zeros((), dtype=za.dtype)
    for i in range(n):
        for j in range(n):
            sign = 1 if ids[i] == ids[j] else -1
            total = total + torch.log1p(torch.exp(-sign * (s[i][j] + bias)))
    return total / n
