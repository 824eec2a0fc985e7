"""What input features say about samples: connectivity, influential rows, weights, further positives, near-copies."""

import math

import torch
from torch import Tensor
from torch.nn.functional import normalize

TIE = 1e-6  # connectivities that differ by less are equal: rounding must not decide
ROWS_AT_ONCE = 2048  # anchors whose additional positives are searched together; limits memory
PAIRS_AT_ONCE = 1 << 20  # pairs that the threshold of near-copies is taken from; limits memory


def connectivity(
    rows: Tensor,
    total: Tensor | None = None,
    squares: Tensor | None = None,
    count: int | None = None,
    with_self: bool = False,
) -> Tensor:
    """(4): mean cosine of each row to all others of its set; C in the paper, which counts the row itself too.

    The mean of the inner products is the inner product with the sum, so this is one matrix-vector product. ``rows``
    (n, Dx) have length one or are zeros. The set is ``rows``, or has the sum ``total`` (Dx,) and ``count`` rows.
    ``squares`` (n,) are the inner products of each row with itself, if they are known.

    Example:
        >>> connectivity(torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])).tolist()
        [0.5, 0.0, 0.5]
    """
    total = rows.sum(0) if total is None else total.to(rows.dtype)
    count = len(rows) if count is None else count
    if with_self:
        return torch.mv(rows, total) / max(1, count)
    if count < 2:
        return rows.new_zeros(len(rows))
    return (torch.mv(rows, total) - (rows.square().sum(1) if squares is None else squares)) / (count - 1)


def influential(
    c: Tensor, threshold: float | None, rule: str, min_keep: float, strict: bool = False
) -> tuple[Tensor, bool]:
    """I of (4): (M,) which rows of the reference set are influential, and whether ``min_keep`` limited the rule.

    At least the share ``min_keep`` of the set stays, the least connected rows first. Rows of equal connectivity (up to
    rounding) at the cut all stay, so neither the order of rows nor their dtype matters; with ``strict`` rows at the
    threshold are influential.
    """
    if threshold is None or not len(c) or float(highest := c.max()) <= TIE:
        return torch.zeros_like(c, dtype=torch.bool), False
    if rule == "quantile":
        cut = torch.quantile(c.double(), threshold)
    else:
        cut = threshold * highest if rule == "relative" else c.new_tensor(threshold)
    mask = c > (cut - TIE if strict else cut + TIE)
    most = len(c) - math.ceil(min_keep * len(c))
    if int(mask.sum()) <= most:
        return mask, False
    return mask & (c > c.sort(descending=True).values[most] + TIE), True


def weight_logits(c: Tensor, weight_scale: float | None, min_effective: float, rule: str = "relative") -> Tensor:
    """(5), normalised: (N,) logits of the anchors' weights, (C / ΣC) / κ, or C / κ by the rule ``absolute``.

    κ (``weight_scale``) is raised until the effective share 1 / (N Σw²) of the anchors is at least ``min_effective``.
    All weights are equal without κ, and by the rule ``relative`` if the mean of C is at most 1e-6.
    """
    if weight_scale is None or not len(c) or (rule == "relative" and float(c.mean()) <= 1e-6):
        return torch.zeros_like(c)
    logits = (c / c.sum() if rule == "relative" else c) / weight_scale
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


def centred(features: Tensor, present: Tensor, share: float) -> tuple[Tensor, float]:
    """(N, Dx) features without their mean, and the cosine between two of them that makes near-copies.

    Raw cosines depend on the expert: those of some are all above 0.9. After the mean of the present rows is removed
    they compare. ``share`` of all pairs of present rows are near-copies; of a large batch, the pairs of some rows with
    all others count. Rows that are absent, or equal to the mean, become zeros, which are near-copies of none.
    """
    rows = torch.where(present.unsqueeze(1), features - features[present].mean(dim=0), 0)
    rows = torch.where(torch.linalg.vector_norm(rows, dim=1, keepdim=True) > 1e-5, normalize(rows, dim=1), 0)
    chosen = rows[present]
    anchors = torch.arange(0, len(chosen), max(1, len(chosen) ** 2 // PAIRS_AT_ONCE), device=rows.device)
    most = int(share * len(anchors) * (len(chosen) - 1))
    if most < 1:
        return rows, math.inf
    cosines = chosen[anchors] @ chosen.T
    cosines[torch.arange(len(anchors)), anchors] = -torch.inf
    return rows, max(TIE, float(cosines.flatten().kthvalue(cosines.numel() - most + 1).values) - TIE)
