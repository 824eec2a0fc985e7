"""The correct gallery rows of each query: one or several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor


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
