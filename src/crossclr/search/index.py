"""The contract of an index back end: vectors with integer ids, found by inner product."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

Vectors = npt.NDArray[np.float32]  # (items, dim)
Ids = npt.NDArray[np.int64]  # (items,) 0 or above
Mask = npt.NDArray[np.bool_]  # indexed by id: whether a search may return the item


class Index(Protocol):
    """What search needs from a back end. With unit vectors the inner product is the cosine."""

    @property
    def dim(self) -> int:
        """Channels of a vector."""

    @property
    def kind(self) -> str:
        """How vectors are compared, such as ``exact`` or ``hnsw``."""

    @property
    def recall(self) -> float | None:
        """Measured share of the true ten nearest that a search returns; None if it is unknown."""

    def __len__(self) -> int:
        """Number of items."""

    def add(self, ids: Ids, vectors: Vectors) -> None:
        """Add items; an item whose id exists is replaced."""

    def delete(self, ids: Ids) -> int:
        """Remove items, ignore unknown ids, and return how many were removed."""

    def compact(self, queries: Vectors | None = None) -> None:
        """Reorganise after many changes, where the back end needs it; ``queries`` are examples to tune with."""

    def search(self, queries: Vectors, top: int, allowed: Mask | None = None) -> tuple[Vectors, Ids]:
        """Scores and ids of the best items for each query, both (queries, top), best first.

        Only items whose entry in ``allowed`` is True are returned; an id past the end of the mask is not allowed. If
        there are fewer than ``top`` items, the row is filled with the id -1 and the score -inf.
        """

    def vectors(self, ids: Ids) -> Vectors:
        """(ids, dim) stored vectors; an unknown id is a KeyError."""

    def save(self, folder: Path) -> None:
        """Write everything to a new folder."""

    @classmethod
    def open(cls, folder: Path) -> Index:
        """Open the index that ``save`` wrote."""


def check_items(ids: Ids, vectors: Vectors, dim: int) -> tuple[Ids, Vectors]:
    """Ids and vectors in the types of the contract, or a ValueError that says what is wrong."""
    ids, vectors = np.asarray(ids, dtype=np.int64), check_vectors(vectors, dim)
    if ids.shape != (len(vectors),):
        raise ValueError(f"there are {len(vectors)} vectors, but the ids have shape {ids.shape}")
    if len(ids) and int(ids.min()) < 0:
        raise ValueError(f"ids must be 0 or above, got {int(ids.min())}")
    if len(np.unique(ids)) != len(ids):
        raise ValueError("an id appears twice in one call; give each item once")
    return ids, vectors


def check_vectors(vectors: Vectors, dim: int) -> Vectors:
    """Vectors (count, dim) in float32, all finite."""
    vectors = np.ascontiguousarray(vectors, dtype=np.float32)
    if vectors.ndim != 2 or vectors.shape[1] != dim:
        raise ValueError(f"vectors must have the shape (count, {dim}), got {vectors.shape}")
    if not np.isfinite(vectors).all():
        raise ValueError("a vector contains NaN or infinity; every number must be finite")
    return vectors


def unit(vectors: npt.NDArray[np.float32]) -> Vectors:
    """Rows at unit length; a row of zeros stays.

    Example:
        >>> unit(np.array([[0.0, 4.0], [0.0, 0.0]], dtype=np.float32)).tolist()
        [[0.0, 1.0], [0.0, 0.0]]
    """
    length = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.ascontiguousarray(vectors / np.maximum(length, 1e-12), dtype=np.float32)


def no_results(queries: int, top: int) -> tuple[Vectors, Ids]:
    """Scores and ids of a search that found nothing yet."""
    return np.full((queries, top), -np.inf, dtype=np.float32), np.full((queries, top), -1, dtype=np.int64)


def allows(allowed: Mask, ids: Ids) -> Mask:
    """(ids,) which ids a mask allows.

    Example:
        >>> allows(np.array([False, True]), np.array([0, 1, 2])).tolist()
        [False, True, False]
    """
    inside: Mask = ids < len(allowed)
    return inside & allowed[np.minimum(ids, max(len(allowed) - 1, 0))] if len(allowed) else inside
