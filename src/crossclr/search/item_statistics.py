"""Hubs are items that many queries return; this counts them.

What an index knows about its items besides their vectors: hub counts, and how similar an item is to all others.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from crossclr.losses.influence import connectivity
from crossclr.search.index import Ids, Index, Vectors
from crossclr.search.items import Item, Items
from crossclr.search.run_items import EmbeddedItems

NEAREST = 10  # a hub is among the ten best results of many queries
MOST_TRIED = 5000


@dataclass(frozen=True)
class HubCounts:
    """How many of the trial queries have each item among their ten best results."""

    counts: npt.NDArray[np.int64]  # (items,)
    tried: int


def count_hubs(index: Index, queries: Vectors, items: int) -> HubCounts:
    """Search with trial queries and count how often each item is among the ten best results.

    Of more than 5,000 queries, a random part is tried. The ids of the items are below ``items``.

    Example:
        >>> from crossclr.search.faiss_index import FaissIndex
        >>> index = FaissIndex(2)
        >>> index.add(np.array([0, 1]), np.eye(2, dtype=np.float32))
        >>> count_hubs(index, np.eye(2, dtype=np.float32), items=3)
        HubCounts(counts=array([2, 2, 0]), tried=2)
    """
    if len(queries) > MOST_TRIED:
        queries = queries[np.sort(np.random.default_rng(0).choice(len(queries), MOST_TRIED, replace=False))]
    counts = np.zeros(items, dtype=np.int64)
    for start in range(0, len(queries), 256):
        _, ids = index.search(queries[start : start + 256], NEAREST)
        counts += np.bincount(ids[ids >= 0], minlength=items)
    return HubCounts(counts, len(queries))


Scores = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Influence:
    """How similar items are to all others, by their input features."""

    connectivity: Scores  # (items,) mean cosine to all other items
    share: Scores  # (items,) share of items with a lower connectivity
    total: Scores  # (channels,) the `unit_sum` of the whole set


def influence(pooled: npt.NDArray[np.float32]) -> Influence:
    """Influence of the items of a whole modality, from their mean input rows (items, channels).

    Example:
        >>> influence(np.array([[1, 0], [1, 0.1], [-1, 0]], dtype=np.float32)).share.round(2).tolist()
        [0.33, 0.67, 0.0]
    """
    unit = _unit(pooled)
    return _influence(unit, unit.sum(0), len(unit), np.empty(0))


def unit_sum(pooled: npt.NDArray[np.float32]) -> Scores:
    """(channels,) the sum of the rows at unit length, which is all that connectivity needs to know about a set."""
    return _unit(pooled).sum(0).numpy()


def influence_among(pooled: npt.NDArray[np.float32], total: Scores, count: int, known: Scores) -> Influence:
    """Influence of new items in a set whose other inputs are no longer available.

    ``total`` is the `unit_sum` of the whole set of ``count`` items, ``known`` the connectivity of the other items.

    Example:
        >>> rows = np.array([[1, 0], [1, 0.1], [-1, 0]], dtype=np.float32)
        >>> new = influence_among(rows[2:], unit_sum(rows), 3, influence(rows[:2]).connectivity)
        >>> new.connectivity.round(3).tolist(), new.share.tolist()
        ([-0.998], [0.0])
    """
    return _influence(_unit(pooled), torch.from_numpy(total), count, known)


def _influence(unit: Tensor, total: Tensor, count: int, known: Scores) -> Influence:
    scores = connectivity(unit, total, torch.linalg.vecdot(unit, unit), count).numpy()
    ordered = np.sort(np.concatenate([known, scores]))
    return Influence(scores, np.searchsorted(ordered, scores, side="left") / len(ordered), total.numpy())


def describe_items(
    items: Items,
    indexes: Mapping[str, Index],
    gathered: Mapping[str, EmbeddedItems],
    ids: Mapping[str, Ids],
    meta: dict[str, Any],
) -> None:
    """Store all items of a new index with their statistics."""
    for modality, index in indexes.items():
        found = gathered[modality]
        hubs = count_hubs(index, other_vectors(gathered, modality), int(ids[modality][-1]) + 1)
        among = influence(found.pooled)
        about = meta["modalities"][modality]
        about["inputs"] = {"sum": among.total.tolist(), "count": len(found.items)}
        _note_queries(about, hubs, len(found.items))
        items.put(
            replace(item, id=key, connectivity=connectivity, influence=share, hub=int(hubs.counts[key]))
            for item, key, connectivity, share in zip(
                found.items, ids[modality].tolist(), among.connectivity.tolist(), among.share.tolist(), strict=True
            )
        )


def influence_of_new(
    items: Items, modality: str, found: EmbeddedItems, fresh: Sequence[Item], about: dict[str, Any]
) -> Influence:
    """Influence of items that join an index, among all items of their modality.

    The other items keep their values, and the inputs of deleted or replaced items still count in the sum.
    """
    names = {item.name for item in found.items}
    new = {item.name for item in fresh}
    rows = np.array([item.name in new for item in found.items])
    total = np.asarray(about["inputs"]["sum"]) + unit_sum(found.pooled[rows])
    count = about["inputs"]["count"] + len(new)
    about["inputs"] = {"sum": total.tolist(), "count": count}
    known = [score for name, score in items.columns("name", "connectivity", where=modality) if name not in names]
    return influence_among(found.pooled, total, count, np.asarray(known, dtype=np.float64))


def recount_hubs(items: Items, indexes: Mapping[str, Index], meta: dict[str, Any]) -> None:
    """Count hubs again after a change, with the items of the other modalities as trial queries."""
    ids = {modality: _ids(items, modality) for modality in indexes}
    for modality, index in indexes.items():
        about = meta["modalities"][modality]
        others = [name for name in indexes if name != modality]
        tried = np.concatenate([np.empty(0, np.int64), *(ids[name] for name in others)])
        if not len(tried) or not len(ids[modality]):
            about["tried"] = 0  # the stored counts are outdated, so remarks no longer mention them
            continue
        if len(tried) > MOST_TRIED:
            tried = np.sort(np.random.default_rng(0).choice(tried, MOST_TRIED, replace=False))
        vectors = np.concatenate([indexes[name].vectors(np.intersect1d(ids[name], tried)) for name in others])
        own = ids[modality]
        hubs = count_hubs(index, vectors, int(own.max()) + 1)
        items.set_columns(own.tolist(), {"hub": hubs.counts[own].tolist()})
        _note_queries(about, hubs, len(own))


def other_vectors(gathered: Mapping[str, EmbeddedItems], modality: str) -> Vectors:
    """The vectors of all other modalities, which serve as trial queries."""
    none = gathered[modality].vectors[:0]
    return np.concatenate([none, *(found.vectors for name, found in gathered.items() if name != modality)])


def _note_queries(about: dict[str, Any], hubs: HubCounts, items: int) -> None:
    about["tried"], about["usual"] = hubs.tried, NEAREST * hubs.tried / items


def _ids(items: Items, modality: str) -> Ids:
    return np.array([row[0] for row in items.columns("id", where=modality)], dtype=np.int64)


def _unit(rows: npt.NDArray[np.float32]) -> Tensor:
    exact = torch.from_numpy(np.ascontiguousarray(rows)).double()
    return exact.div_(torch.linalg.vector_norm(exact, dim=1, keepdim=True).clamp_min_(1e-12))
