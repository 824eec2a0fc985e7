"""The contract of an index back end: vectors under whole-number ids, found by inner product."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

Vectors = npt.NDArray[np.float32]  # (items, dim)
Ids = npt.NDArray[np.int64]  # (items,) 0 or above
Mask = npt.NDArray[np.bool_]  # indexed by id: whether an item may be found


class Index(Protocol):
    """What search needs of a back end; unit vectors make the inner product a cosine."""

    @property
    def dim(self) -> int:
        """Channels of a vector."""
        ...

    def __len__(self) -> int:
        """Items that can be found."""
        ...

    def add(self, ids: Ids, vectors: Vectors) -> None:
        """Add items; one whose id is there already is replaced."""
        ...

    def delete(self, ids: Ids) -> int:
        """Remove items; ids that are not there are passed over. Returns how many were removed."""
        ...

    def search(self, queries: Vectors, top: int, allowed: Mask | None = None) -> tuple[Vectors, Ids]:
        """Scores and ids of the best items for each query, both (queries, top), best first.

        ``allowed`` leaves out items whose place in it is False (or lies behind its end). Where there are fewer than
        ``top`` items, the rest of a row has the id -1 and the score -inf.
        """
        ...

    def vectors(self, ids: Ids) -> Vectors:
        """(ids, dim) stored vectors; an id that is not there is a KeyError."""
        ...

    def save(self, folder: Path) -> None:
        """Write everything to a new folder."""
        ...

    @classmethod
    def open(cls, folder: Path) -> Index:
        """The index that ``save`` wrote."""
        ...


def check_items(ids: Ids, vectors: Vectors, dim: int) -> tuple[Ids, Vectors]:
    """Ids and vectors in the types of the contract, or a ValueError that says what is wrong."""
    ids, vectors = np.asarray(ids, dtype=np.int64), check_vectors(vectors, dim)
    if ids.shape != (len(vectors),):
        raise ValueError(f"{ids.shape} ids do not go with {len(vectors)} vectors")
    if len(ids) and int(ids.min()) < 0:
        raise ValueError(f"ids must be 0 or above, got {int(ids.min())}")
    if len(np.unique(ids)) != len(ids):
        raise ValueError("an id stands twice in one call; give each item once")
    return ids, vectors


def check_vectors(vectors: Vectors, dim: int) -> Vectors:
    """Vectors (count, dim) in float32, all finite."""
    vectors = np.ascontiguousarray(vectors, dtype=np.float32)
    if vectors.ndim != 2 or vectors.shape[1] != dim:
        raise ValueError(f"vectors of shape (count, {dim}) are needed, got {vectors.shape}")
    if not np.isfinite(vectors).all():
        raise ValueError("a vector holds NaN or infinity; every number must be finite")
    return vectors
