"""Exact retrieval ranks, tile by tile: the score matrix of all pairs is never in memory.

The rank of a query's target is ``1 + greater + equal / 2``, counted over the gallery rows that are not valid targets
themselves. An embedding that has collapsed to a point therefore scores like chance. Similarity is the cosine.

Scores are computed in float32, where a duplicate of the target may differ from it in the last bit (a matrix product
sums in an order that depends on the tile). So everything within float32's resolution of the target's score is compared
once more in float64, and differences below 1e-12 there are ties. The result is the rank that a sort in float64 gives.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from crossclr.evaluation.retrieval.ground_truth import Targets
from crossclr.progress_bar import progress_bar

Matrix = Tensor | npt.NDArray[np.floating]

TIE = 1e-12  # cosines in float64 that differ by less are equal
QUERY_TILE, GALLERY_TILE = 512, 2048  # a tile of scores and its mask stay in the cache
LONG = 2_000_000_000  # pairs; from here on (a few seconds) progress is shown
PAIRS = 16_384  # pairs that are gathered at once for the comparison in float64


def retrieval_ranks(queries: Matrix, gallery: Matrix, targets: Any = None, *, progress: bool | None = None) -> Tensor:
    """Rank of each query's target among all gallery rows, by cosine.

    With several valid targets the best one counts; the others are ignored. Rows that tie with the target count half,
    so a rank may end in .5 (it is pessimistic if several targets tie).

    Args:
        queries: (queries, D) array or tensor of any floating type; need not be normalised.
        gallery: (gallery, D).
        targets: None if query i belongs to gallery row i; else one row number for each query, or a sequence of row
            numbers for each query, or a SciPy sparse matrix of the valid pairs.
        progress: show a progress bar; None shows it for long computations only.

    Returns:
        (queries,) float64 ranks, 1 is best.

    Raises:
        ValueError: shapes do not fit, a row has NaN or infinity, or a target is not in the gallery.

    Example:
        >>> import torch
        >>> retrieval_ranks(torch.eye(3), torch.eye(3)).tolist()
        [1.0, 1.0, 1.0]
        >>> retrieval_ranks(torch.ones(3, 2), torch.ones(3, 2)).tolist()
        [2.0, 2.0, 2.0]
        >>> retrieval_ranks(torch.eye(2), torch.eye(2)[[1, 0, 0]], targets=[[1, 2], [0]]).tolist()
        [1.0, 1.0]
    """
    query_rows, gallery_rows = _Rows.parse("queries", queries), _Rows.parse("gallery", gallery)
    if query_rows.unit.shape[1] != gallery_rows.unit.shape[1]:
        raise ValueError(
            f"queries have {query_rows.unit.shape[1]} dimensions but the gallery has {gallery_rows.unit.shape[1]}"
        )
    pairs = Targets.parse(targets, len(query_rows.unit), len(gallery_rows.unit))
    total = len(query_rows.unit) * len(gallery_rows.unit)
    shown = total >= LONG if progress is None else progress
    with progress_bar(shown) as bar, torch.inference_mode():
        task = bar.add_task("ranks", total=len(query_rows.unit))
        return _count(query_rows, gallery_rows, pairs, lambda rows: bar.advance(task, rows))


@dataclass(frozen=True)
class _Rows:
    """Rows as given, their lengths in float64 and their directions in float32."""

    raw: Tensor
    norms: Tensor
    unit: Tensor

    @classmethod
    def parse(cls, name: str, rows: Matrix) -> _Rows:
        if isinstance(rows, np.ndarray) and (not rows.flags.writeable or min(rows.strides, default=1) < 0):
            rows = rows.copy()  # torch cannot share such memory
        raw = torch.as_tensor(rows).detach().cpu()
        if raw.ndim != 2 or raw.shape[1] == 0:
            raise ValueError(f"{name} must be (rows, dimensions), got shape {tuple(raw.shape)}")
        if not raw.is_floating_point():
            raw = raw.to(torch.float32)
        norms = torch.empty(len(raw), dtype=torch.float64)
        unit = torch.empty(raw.shape, dtype=torch.float32)
        for start in range(0, len(raw), GALLERY_TILE):
            here = slice(start, start + GALLERY_TILE)
            rows64 = raw[here].to(torch.float64)
            bad = ~torch.isfinite(rows64).all(dim=1)
            if bool(bad.any()):
                raise ValueError(
                    f"row {start + int(bad.nonzero()[0])} of {name} holds NaN or infinity; omit or repair it"
                )
            # Scaled first, so that the squares of huge or tiny values stay in range.
            scale = rows64.abs().amax(dim=1).clamp_min(torch.finfo(torch.float64).tiny)
            length = (rows64 / scale.unsqueeze(1)).norm(dim=1).clamp_min(1.0) * scale  # a row of zeros stays zeros
            norms[here] = length
            unit[here] = (rows64 / length.unsqueeze(1)).to(torch.float32)
        return cls(raw, norms, unit)

    def exact(self, index: Tensor | slice) -> Tensor:
        """The directions of some rows in float64."""
        return self.raw[index].to(torch.float64) / self.norms[index].unsqueeze(1)


def _count(queries: _Rows, gallery: _Rows, targets: Targets, advance: Callable[[int], None]) -> Tensor:
    count, size, dim = len(queries.unit), len(gallery.unit), queries.unit.shape[1]
    ranks = torch.empty(count, dtype=torch.float64)
    starts = targets.counts.cumsum(0) - targets.counts
    scores = torch.empty(min(count, QUERY_TILE) * min(size, GALLERY_TILE))
    mask = torch.empty_like(scores)
    margin = 4 * torch.finfo(torch.float32).eps * dim**0.5  # well above the rounding of a float32 dot product
    for first in range(0, count, QUERY_TILE):
        last = min(first + QUERY_TILE, count)
        rows = torch.arange(first, last)
        here = slice(int(starts[first]), int(starts[last - 1] + targets.counts[last - 1]))
        columns = targets.columns[here]
        owners = torch.repeat_interleave(rows - first, targets.counts[first:last])
        best, exact = _best_target(queries, gallery, owners + first, columns, owners, last - first)
        query = queries.unit[first:last]  # (rows, D)
        # The same kind of product as below, so that a rounding that is common to all scores cancels.
        own = (query @ gallery.unit[best].T).diagonal()  # (rows,)
        above, below = (own + margin).unsqueeze(1), (own - margin).unsqueeze(1)
        columns, order = columns.sort()
        owners = owners[order]
        greater = torch.zeros(last - first, dtype=torch.float64)
        equal = torch.zeros(last - first, dtype=torch.float64)
        for left in range(0, size, GALLERY_TILE):
            right = min(left + GALLERY_TILE, size)
            shape = (last - first, right - left)
            tile = scores[: shape[0] * shape[1]].view(shape)
            flag = mask[: shape[0] * shape[1]].view(shape)
            torch.mm(query, gallery.unit[left:right].T, out=tile)
            inside = slice(*torch.searchsorted(columns, torch.tensor([left, right])).tolist())
            tile[owners[inside], columns[inside] - left] = -torch.inf
            # float32 masks: a comparison into the same type and its sum run several times faster than on bool.
            clear = torch.gt(tile, above, out=flag).sum(dim=1)
            reach = torch.ge(tile, below, out=flag).sum(dim=1)
            greater += clear
            close = (reach > clear).nonzero().squeeze(1)  # rows of this tile with scores that float32 cannot order
            if len(close):
                near = (tile[close] >= below[close]) & (tile[close] <= above[close])  # (close, columns)
                more, same = _compare(queries, gallery, first + close, left, right, near, exact[close])
                greater[close] += more
                equal[close] += same
        ranks[first:last] = 1 + greater + equal / 2
        advance(last - first)
    return ranks


def _best_target(
    queries: _Rows, gallery: _Rows, rows: Tensor, columns: Tensor, owners: Tensor, count: int
) -> tuple[Tensor, Tensor]:
    """For each query of a tile, its best valid target and their cosine in float64."""
    scores = torch.cat(
        [
            _cosines(queries, gallery, r, c)
            for r, c in zip(torch.split(rows, PAIRS), torch.split(columns, PAIRS), strict=True)
        ]
    )
    top = torch.full((count,), -torch.inf, dtype=torch.float64).scatter_reduce(0, owners, scores, "amax")
    winners = (scores == top[owners]).nonzero().squeeze(1).flip(0)
    best = torch.empty(count, dtype=torch.int64)
    best[owners[winners]] = columns[winners]
    return best, top


def _cosines(queries: _Rows, gallery: _Rows, rows: Tensor, columns: Tensor) -> Tensor:
    return (queries.exact(rows) * gallery.exact(columns)).sum(dim=1)


def _compare(
    queries: _Rows, gallery: _Rows, rows: Tensor, left: int, right: int, near: Tensor, exact: Tensor
) -> tuple[Tensor, Tensor]:
    """Count in float64, among the near pairs of a tile, those above the target and those equal to it."""
    if int(near.sum()) * 32 > near.numel():  # so many that one product in float64 is cheaper than gathering pairs
        difference = queries.exact(rows) @ gallery.exact(slice(left, right)).T - exact.unsqueeze(1)  # (close, columns)
        greater = (near & (difference > TIE)).sum(dim=1)
        return greater, (near & (difference.abs() <= TIE)).sum(dim=1)
    owner, column = near.nonzero(as_tuple=True)
    greater, equal = torch.zeros(len(rows), dtype=torch.int64), torch.zeros(len(rows), dtype=torch.int64)
    for o, c in zip(torch.split(owner, PAIRS), torch.split(column, PAIRS), strict=True):
        difference = _cosines(queries, gallery, rows[o], c + left) - exact[o]
        greater.index_add_(0, o, (difference > TIE).to(torch.int64))
        equal.index_add_(0, o, (difference.abs() <= TIE).to(torch.int64))
    return greater, equal
