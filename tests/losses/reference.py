"""The losses once more, as plain loops over numbers: slow, obvious, and written apart from the code they check.

Values are float64 tensors of no dimension, so that autograd gives the gradients of the loops too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor


def unit(vector: Tensor) -> Tensor:
    return vector / (vector * vector).sum().sqrt()


def cosine(x: Tensor, y: Tensor) -> Tensor:
    return (unit(x) * unit(y)).sum()


@dataclass
class Row:
    """One sample in the reference queue."""

    a: Tensor
    b: Tensor
    za: Tensor
    zb: Tensor
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
    positive_weight: float = 0.15
    prune_by: str = "relative"
    min_keep: float = 0.25
    intra_mode: str = "logit"
    self_logit: str = "masked"
    queue: list[Row] = field(default_factory=list)
    step: int = 0
    shares: tuple[float, float] = (0.0, 0.0)  # of the reference set that was pruned
    intra_shares: tuple[float, float] = (0.0, 0.0)  # of the denominators that are intra-modal

    def __call__(self, za: Tensor, zb: Tensor, a: Tensor, b: Tensor, ids: list[int] | None) -> Tensor:
        batch = []
        for i in range(len(za)):
            name = ids[i] if ids is not None else -(10**6) * (self.step + 1) - i
            batch.append(Row(a[i], b[i], za[i], zb[i], name, (self.step, i)))
        self.step += 1
        if self.queue_size:
            older = [Row(r.a, r.b, r.za.detach(), r.zb.detach(), r.id, r.born) for r in self.queue]
            self.queue = (older + batch)[-max(self.queue_size, len(batch)) :]
            reference = self.queue
            self.queue = self.queue[-self.queue_size :]
        else:
            reference = batch
        loss_a, share_a, intra_a = self.one_side("a", "b", batch, reference)
        loss_b, share_b, intra_b = self.one_side("b", "a", batch, reference)
        self.shares = (share_a, share_b)
        self.intra_shares = (intra_a, intra_b)
        return (loss_a + loss_b) / 2

    def one_side(self, side: str, other: str, batch: list[Row], reference: list[Row]) -> tuple[Tensor, float, float]:
        def x(row: Row) -> Tensor:
            return getattr(row, side)

        def z(row: Row) -> Tensor:
            return getattr(row, "z" + side)

        def z_other(row: Row) -> Tensor:
            return getattr(row, "z" + other)

        score = {}
        for row in reference:
            others = [float((unit(x(row)) * unit(x(r))).sum()) for r in reference if r.born != row.born]
            score[row.born] = sum(others) / len(others) if others else 0.0
        pruned = self.prune(score)

        losses, intra_shares = [], []
        for i, anchor in enumerate(batch):
            candidates = [r for j, r in enumerate(batch) if j != i and r.born in pruned]
            candidates.sort(key=lambda r: -float(cosine(x(anchor), x(r))))
            positives = [(1.0, anchor)] + [(self.positive_weight, r) for r in candidates[: self.extra_positives]]
            numerator = sum(w * torch.exp(cosine(z(anchor), z_other(r)) / self.temperature) for w, r in positives)
            denominator = numerator
            for r in batch:
                if r.born != anchor.born and r.id != anchor.id and r.born not in pruned:
                    denominator = denominator + torch.exp(cosine(z(anchor), z_other(r)) / self.temperature)
            without_intra = denominator
            if self.intra_weight:
                for r in reference:
                    if r.born == anchor.born:
                        if self.self_logit == "zero":
                            denominator = denominator + (self.intra_weight if self.intra_mode == "sum" else 1.0)
                        continue
                    if r.id == anchor.id or r.born in pruned:
                        continue
                    logit = cosine(z(anchor), z(r)) / self.temperature
                    if self.intra_mode == "sum":
                        denominator = denominator + self.intra_weight * torch.exp(logit)
                    else:
                        denominator = denominator + torch.exp(self.intra_weight * logit)
            losses.append(torch.log(denominator / numerator))
            intra_shares.append(1 - float(without_intra.detach() / denominator.detach()))

        scores = [score[anchor.born] for anchor in batch]
        weights = [1 / len(batch)] * len(batch)
        if self.weight_scale is not None and sum(scores) > 1e-6 * len(batch):
            raised = [s / sum(scores) / self.weight_scale for s in scores]
            exps = [math.exp(r - max(raised)) for r in raised]
            weights = [e / sum(exps) for e in exps]
        loss = sum(w * loss for w, loss in zip(weights, losses, strict=True))
        return loss, len(pruned) / len(reference), sum(intra_shares) / len(intra_shares)

    def prune(self, score: dict[tuple[int, int], float]) -> set[tuple[int, int]]:
        values = sorted(score.values())
        if self.prune_threshold is None or values[-1] <= 0:
            return set()
        if self.prune_by == "relative":
            chosen = [k for k, c in score.items() if c / values[-1] > self.prune_threshold]
        elif self.prune_by == "absolute":
            chosen = [k for k, c in score.items() if c > self.prune_threshold]
        else:
            place = self.prune_threshold * (len(values) - 1)
            low = math.floor(place)
            high = min(low + 1, len(values) - 1)
            level = values[low] + (place - low) * (values[high] - values[low])
            chosen = [k for k, c in score.items() if c > level]
        allowed = len(values) - math.ceil(self.min_keep * len(values))
        chosen.sort(key=lambda k: -score[k])
        return set(chosen[:allowed])


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
