"""Whole samples as results: one vector for all items of a clip."""

from collections.abc import Mapping

import numpy as np

from crossclr.search.index.contract import Index, unit
from crossclr.search.index.faiss_index import FaissIndex
from crossclr.search.items.item_table import Items


def fuse_items(items: Items, indexes: Mapping[str, Index], dim: int) -> FaissIndex:
    """An exact index of clips: the normalised mean of the vectors that a clip has, under the id of its first item.

    Several items of one modality, such as the sentences of a video, count as one.

    Args:
        items: the items of the index.
        indexes: the modalities to fuse.
        dim: channels of the vectors.
    """
    rows = {name: items.columns("id", "key", where=name) for name in indexes}
    first: dict[str, int] = {}  # clip -> id
    for part in rows.values():
        for number, key in part:
            first.setdefault(key, number)
    place = {key: row for row, key in enumerate(first)}
    total = np.zeros((len(first), dim), dtype=np.float32)
    for name, part in rows.items():
        mean = np.zeros_like(total)
        vectors = indexes[name].vectors(np.array([number for number, _ in part], dtype=np.int64))
        np.add.at(mean, [place[key] for _, key in part], vectors)
        total += unit(mean)
    fused = FaissIndex(dim)
    fused.add(np.array(list(first.values()), dtype=np.int64), unit(total))
    return fused
