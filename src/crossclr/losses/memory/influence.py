"""Influential rows, anchor weights and additional positives, all computed from connectivity."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from crossclr.losses.inputs.options import check_choice, check_count, check_number

PRUNE_RULES = ("relative", "absolute", "quantile")
ROWS_AT_ONCE = 2048  # rows searched together; limits memory and does not change the result


@dataclass(frozen=True)
class InfluenceRules:
    """The options of :class:`CrossCLR` that use connectivity, with the same names."""

    prune_threshold: float | None
    prune_by: str
    min_keep: float
    weight_scale: float | None
    extra_positives: int

    def __post_init__(self) -> None:
        check_choice("prune_by", self.prune_by, PRUNE_RULES)
        check_number("min_keep", self.min_keep, 0, 1)
        if self.prune_threshold is not None:
            check_number("prune_threshold", self.prune_threshold, -1 if self.prune_by == "absolute" else 0, 1)
        if self.weight_scale is not None:
            check_number("weight_scale", self.weight_scale, 1e-9)
        check_count("extra_positives", self.extra_positives, 0)


def influential(scores: Tensor, threshold: float | None, rule: str, min_keep: float) -> tuple[Tensor, bool]:
    """(M,) which rows of the reference set are influential, and whether ``min_keep`` limited the rule.

    ``relative`` compares C / max C with the threshold γ, ``absolute`` C itself, ``quantile`` prunes above that quantile
    of C; without a threshold, nothing is pruned. At least the share ``min_keep`` of the set stays, the least connected
    rows first. Rows of equal connectivity at the cut all stay, so the order of rows does not matter.
    """
    nothing = torch.zeros_like(scores, dtype=torch.bool)
    if threshold is None:
        return nothing, False
    highest = scores.max()
    if float(highest) <= 0:
        return nothing, False
    if rule == "relative":
        chosen = scores / highest > threshold
    elif rule == "absolute":
        chosen = scores > threshold
    else:
        chosen = scores > torch.quantile(scores.double(), threshold).to(scores.dtype)
    most = len(scores) - math.ceil(min_keep * len(scores))
    if int(chosen.sum()) <= most:
        return chosen, False
    first_to_stay = scores.sort(descending=True).values[most]
    return chosen & (scores > first_to_stay), True


def anchor_weights(
    scores: Tensor, weight_scale: float | None, present: Tensor | None = None, anchors: Tensor | None = None
) -> Tensor:
    """(N,) weights that sum to 1: softmax of (C / ΣC) / κ over the anchors; other rows get 0.

    ΣC is the sum over the ``present`` rows. If it is at most 1e-6·N, or without ``weight_scale`` (κ), all anchors have
    the same weight.
    """
    summed = scores if present is None else scores[present]
    if weight_scale is None or float(summed.sum()) <= 1e-6 * len(summed):
        logits = torch.zeros_like(scores)
        if anchors is None:
            return torch.full_like(scores, 1 / len(scores))
    else:
        logits = scores / summed.sum() / weight_scale
    if anchors is not None:
        logits = logits.masked_fill(~anchors, -torch.inf)
    return torch.softmax(logits, dim=0)


def nearest_influential(rows: Tensor, mask: Tensor, count: int) -> Tensor | None:
    """(N, k) the influential samples of the batch that are nearest to each anchor in input space, at most ``count``.

    -1 where an anchor has fewer than k; None if no anchor has any.
    """
    candidates = mask.nonzero().flatten()  # (I,)
    if count == 0 or len(candidates) == 0:
        return None
    places = torch.arange(len(rows), device=rows.device)
    found = []
    for part in torch.split(places, ROWS_AT_ONCE):
        similarity = rows[part] @ rows[candidates].T  # (part, I)
        own = part.unsqueeze(1) == candidates
        nearest = similarity.masked_fill_(own, -torch.inf).topk(min(count, len(candidates)), dim=1)
        found.append(torch.where(nearest.values == -torch.inf, -1, candidates[nearest.indices]))
    return torch.cat(found)
