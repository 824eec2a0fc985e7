"""The correct gallery rows of each query: one or several.

Exact retrieval ranks, tile by tile: the score matrix of all pairs is never in memory.

The rank of a query's target is ``1 + greater + equal / 2``, counted over the gallery rows that are not valid targets
themselves. An embedding that has collapsed to a point therefore scores like chance. Similarity is the cosine.

Scores are computed in float32, where a duplicate of the target may differ from it in the last bit (a matrix product
sums in an order that depends on the tile). So everything within float32's resolution of the target's score is compared
once more in float64, and differences below 1e-12 there are ties. The result is the rank that a sort in float64 gives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from crossclr.models.similarity import expert_lengths, paired_similarities, positive, similarity_matrix
from crossclr.progress_bar import progress_bar


@dataclass(frozen=True)
class Targets:
    """The valid gallery rows of every query, end to end.

    Args:
        columns: (pairs,) int64 gallery rows: those of query 0, then those of query 1, ...
        counts: (queries,) int64 how many each query has; at least one.
    """

    columns: Tensor
    counts: Tensor

    @property
    def owners(self) -> Tensor:
        """(pairs,) the query of each pair."""
        return torch.repeat_interleave(torch.arange(len(self.counts)), self.counts)

    @classmethod
    def parse(cls, targets: Any, queries: int, gallery: int) -> Targets:
        """Read any accepted form of targets and check it against the two sizes.

        Args:
            targets: None (query i belongs to gallery row i), one integer for each query, a sequence of integer
                sequences (several valid rows), a SciPy sparse matrix (queries, gallery) whose stored entries are the
                valid pairs, or a `Targets`.
            queries: number of queries.
            gallery: number of gallery rows.

        Returns:
            the pairs, without repetition within a query.

        Example:
            >>> Targets.parse([[0, 2], [1]], queries=2, gallery=3).columns.tolist()
            [0, 2, 1]
        """
        if targets is None:
            if queries != gallery:
                raise ValueError(
                    f"there are {queries} queries and {gallery} gallery rows; without targets they are paired row by "
                    "row and must have the same number; pass targets that name the gallery row of each query"
                )
            return cls(torch.arange(queries), torch.ones(queries, dtype=torch.int64))
        if isinstance(targets, Targets):
            columns, counts = targets.columns, targets.counts
        elif hasattr(targets, "tocsr"):
            matrix = targets.tocsr()
            if matrix.shape != (queries, gallery):
                raise ValueError(
                    f"sparse targets must be (queries, gallery) = {(queries, gallery)}, got {matrix.shape}"
                )
            columns, counts = _integers(matrix.indices), _integers(np.diff(matrix.indptr))
        elif _is_flat(targets):
            columns = _integers(targets)
            counts = torch.ones(len(columns), dtype=torch.int64)
        else:
            rows = [_integers(row) for row in targets]
            columns = torch.cat(rows) if rows else torch.zeros(0, dtype=torch.int64)
            counts = torch.tensor([len(row) for row in rows], dtype=torch.int64)
        return cls(columns, counts)._checked(queries, gallery)

    def _checked(self, queries: int, gallery: int) -> Targets:
        if len(self.counts) != queries:
            raise ValueError(f"targets are given for {len(self.counts)} queries but there are {queries}")
        if bool((self.counts < 1).any()):
            query = int((self.counts < 1).nonzero()[0])
            raise ValueError(f"query {query} has no target; omit such queries before ranking")
        outside = (self.columns < 0) | (self.columns >= gallery)
        if bool(outside.any()):
            pair = int(outside.nonzero()[0])
            raise ValueError(
                f"the target of query {int(self.owners[pair])} is gallery row {int(self.columns[pair])}, "
                f"but the gallery has rows 0 to {gallery - 1}"
            )
        # A repeated pair must be masked and counted once.
        pairs = torch.unique(self.owners * gallery + self.columns)
        if len(pairs) == len(self.columns):
            return self
        return Targets(pairs % gallery, torch.bincount(pairs // gallery, minlength=queries))


def _is_flat(targets: Sequence[Any] | Tensor) -> bool:
    if isinstance(targets, np.ndarray | Tensor):
        if targets.ndim not in (1, 2):
            raise ValueError(f"targets must have one or two axes, got shape {tuple(targets.shape)}")
        return targets.ndim == 1 and getattr(targets, "dtype", None) != np.dtype(object)
    return len(targets) == 0 or np.ndim(targets[0]) == 0


def _integers(values: Any) -> Tensor:
    array = values.numpy(force=True) if isinstance(values, Tensor) else np.asarray(values)
    if array.ndim != 1:
        raise ValueError(f"the targets of one query must be a flat list of integers, got shape {array.shape}")
    if array.size and not np.issubdtype(array.dtype, np.integer):
        raise ValueError(f"targets are gallery row numbers and must be integers, got {array.dtype}")
    return torch.as_tensor(array.astype(np.int64))


Matrix = Tensor | npt.NDArray[np.floating]

TIE = 1e-12  # cosines in float64 that differ by less are equal
QUERY_TILE, GALLERY_TILE = 512, 2048  # a tile of scores and its mask stay in the cache
LONG = 2_000_000_000  # pairs; from here on (a few seconds) progress is shown
PAIRS = 16_384  # pairs that are gathered at once for the comparison in float64


def retrieval_ranks(
    queries: Matrix, gallery: Matrix, targets: Any = None, *, experts: int = 1, progress: bool | None = None
) -> Tensor:
    """Rank of each query's target among all gallery rows, by cosine.

    With several valid targets the best one counts; the others are ignored. Rows that tie with the target count half,
    so a rank may end in .5 (it is pessimistic if several targets tie).

    Args:
        queries: (queries, D) array or tensor of any floating type; need not be normalised.
        gallery: (gallery, D).
        targets: None if query i belongs to gallery row i; else one row number for each query, or a sequence of row
            numbers for each query, or a SciPy sparse matrix of the valid pairs.
        experts: number of experts whose vectors lie side by side in a row; see `crossclr.models.similarity`.
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
    query_rows, gallery_rows = _Rows.parse("queries", queries, experts), _Rows.parse("gallery", gallery, experts)
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
    experts: int = 1

    @classmethod
    def parse(cls, name: str, rows: Matrix, experts: int = 1) -> _Rows:
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
        return cls(raw, norms, unit, experts)

    def exact(self, index: Tensor | slice) -> Tensor:
        """The directions of some rows in float64."""
        return self.raw[index].to(torch.float64) / self.norms[index].unsqueeze(1)

    def products(self, here: slice, others: _Rows, there: Tensor | slice, out: Tensor | None = None) -> Tensor:
        """(rows, others) similarities in float32."""
        query, gallery = self.unit[here], others.unit[there]
        products = query @ gallery.T if out is None else torch.mm(query, gallery.T, out=out)
        if self.experts > 1:
            products /= positive(expert_lengths(query, self.experts) @ expert_lengths(gallery, self.experts).T)
        return products


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
        # The same kind of product as below, so that a rounding that is common to all scores cancels.
        own = queries.products(slice(first, last), gallery, best).diagonal()  # (rows,)
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
            queries.products(slice(first, last), gallery, slice(left, right), out=tile)
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
    return paired_similarities(queries.exact(rows), gallery.exact(columns), queries.experts)


def _compare(
    queries: _Rows, gallery: _Rows, rows: Tensor, left: int, right: int, near: Tensor, exact: Tensor
) -> tuple[Tensor, Tensor]:
    """Count in float64, among the near pairs of a tile, those above the target and those equal to it."""
    if int(near.sum()) * 32 > near.numel():  # so many that one product in float64 is cheaper than gathering pairs
        scores = similarity_matrix(queries.exact(rows), gallery.exact(slice(left, right)), queries.experts)
        difference = scores - exact.unsqueeze(1)  # (close, columns)
        greater = (near & (difference > TIE)).sum(dim=1)
        return greater, (near & (difference.abs() <= TIE)).sum(dim=1)
    owner, column = near.nonzero(as_tuple=True)
    greater, equal = torch.zeros(len(rows), dtype=torch.int64), torch.zeros(len(rows), dtype=torch.int64)
    for o, c in zip(torch.split(owner, PAIRS), torch.split(column, PAIRS), strict=True):
        difference = _cosines(queries, gallery, rows[o], c + left) - exact[o]
        greater.index_add_(0, o, (difference > TIE).to(torch.int64))
        equal.index_add_(0, o, (difference.abs() <= TIE).to(torch.int64))
    return greater, equal
