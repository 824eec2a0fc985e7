"""What an index knows of its items beyond their vectors: who is found too often, and who is like very many."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from crossclr.models import Hubs
from crossclr.search.building.hubness import (
    NEAREST,
    TRIED,
    correction,
    count_occurrences,
    influence,
    influence_among,
    unit_sum,
)
from crossclr.search.building.run_items import Gathered
from crossclr.search.index.contract import Index, Vectors
from crossclr.search.index.faiss_index import FaissIndex
from crossclr.search.items.item_table import Item, Items
from crossclr.training import Run

Scores = npt.NDArray[np.float64]
FITTED: Literal["fitted"] = "fitted"
Hubness = bool | Literal["fitted"]


def other_modality(modality: str) -> str:
    """The one that asks."""
    return "b" if modality == "a" else "a"


def corrected(vectors: Vectors, queries: Vectors, hubness: Hubness, fitted: Hubs | None = None) -> Vectors:
    """Vectors with one more channel against hubs, where the index has one.

    Args:
        vectors: (items, dim) unit vectors.
        queries: (queries, dim) of the other modality, for a correction by the items of the index themselves.
        hubness: False: no channel; True: by those queries; ``fitted``: as the run has it, or nothing (0).
        fitted: what the run has fitted for this modality.
    """
    if not hubness:
        return vectors
    if hubness == FITTED:
        bias = np.zeros(len(vectors)) if fitted is None else fitted(torch.from_numpy(vectors)).numpy()
        return np.concatenate([vectors, bias[:, None].astype(np.float32)], axis=1)
    asked = FaissIndex(queries.shape[1])
    asked.add(np.arange(len(queries)), queries)
    asked.compact()
    return np.concatenate([vectors, correction(asked, vectors)], axis=1)


def corrected_queries(queries: Vectors, hubness: Hubness) -> Vectors:
    """Queries that read that channel."""
    return np.pad(queries, ((0, 0), (0, 1)), constant_values=1.0) if hubness else queries


def describe(
    items: Items,
    indexes: Mapping[str, Index],
    gathered: Mapping[str, Gathered],
    numbers: Mapping[str, np.ndarray[Any, np.dtype[np.int64]]],
    meta: dict[str, Any],
    run: Run,
) -> None:
    """Put all items in, with what may make them hubs or influential."""
    for modality, index in indexes.items():
        found, ids = gathered[modality], numbers[modality]
        asked = corrected_queries(gathered[other_modality(modality)].vectors, meta["hubness"])
        counts, tried = count_occurrences(index, asked, int(ids[-1]) + 1)
        scores, shares = influence(found.pooled)
        meta["modalities"][modality] |= {
            "tried": tried,
            "usual": NEAREST * tried / len(found.items),
            "inputs": {"sum": unit_sum(found.pooled).tolist(), "count": len(found.items)},
        }
        items.put(
            replace(item, id=int(key), connectivity=float(score), influence=float(share), hub=int(counts[key]))
            for item, key, score, share in zip(found.items, ids, scores, shares, strict=True)
        )


def influence_of_new(
    items: Items, modality: str, found: Gathered, fresh: Sequence[Item], about: dict[str, Any]
) -> tuple[Scores, Scores]:
    """Connectivity of items that come into an index, to all that are in it.

    Those that were there keep their figures, and the inputs of deleted or replaced ones still count in the sum.
    """
    inputs = about.get("inputs")
    if inputs is None:  # an index that was built before its sums were kept
        return influence(found.pooled)
    names = {item.name for item in found.items}
    new = {item.name for item in fresh}
    rows = np.array([item.name in new for item in found.items])
    total = np.asarray(inputs["sum"]) + unit_sum(found.pooled[rows])
    count = inputs["count"] + len(new)
    about["inputs"] = {"sum": total.tolist(), "count": count}
    known = [score for name, score in items.columns("name", "connectivity", where=modality) if name not in names]
    return influence_among(found.pooled, total, count, np.asarray(known, dtype=np.float64))


def count_again(items: Items, indexes: Mapping[str, Index], meta: dict[str, Any]) -> None:
    """Hubs after a change, with the items of the other modality as queries."""
    for modality, index in indexes.items():
        about = meta["modalities"][modality]
        other = indexes.get(other_modality(modality))
        ids = np.array([row[0] for row in items.columns("id", where=modality)], dtype=np.int64)
        asked = np.array([row[0] for row in items.columns("id", where=other_modality(modality))], dtype=np.int64)
        if other is None or not len(asked):
            about["tried"] = 0  # the counts are of other times, so nothing is said about hubs any more
            continue
        if len(asked) > TRIED:
            asked = np.sort(np.random.default_rng(0).choice(asked, TRIED, replace=False))
        queries = corrected_queries(other.vectors(asked)[:, : meta["dim"]], meta["hubness"])
        counts, tried = count_occurrences(index, queries, int(ids.max()) + 1)
        items.set_columns(ids.tolist(), {"hub": counts[ids].tolist()})
        about["tried"], about["usual"] = tried, NEAREST * tried / len(ids)
