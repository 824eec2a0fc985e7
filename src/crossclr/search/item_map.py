"""The map of a collection: where its items are in two dimensions, and which of them the page draws."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import faiss
import numpy as np
import numpy.typing as npt
from threadpoolctl import threadpool_limits

from crossclr.evaluation.tsne import main_components, tsne
from crossclr.search.filters import Codes
from crossclr.search.index import Ids, Index, Vectors
from crossclr.search.items import Items

if TYPE_CHECKING:
    from crossclr.search.run_items import EmbeddedItems


Places = npt.NDArray[np.float32]  # (items, 2) between 0 and 1
LANDMARKS = 600
MOST_POINTS = 8000
_NEIGHBOURS = 5000  # items on the map that new items are compared with
_LONGEST_TEXT = 70


def place_items(items: Items, gathered: Mapping[str, EmbeddedItems], ids: Mapping[str, Ids]) -> None:
    """Lay out the items of a new index."""
    vectors = np.concatenate([found.vectors for found in gathered.values()])
    modality = np.concatenate([np.full(len(found.items), number) for number, found in enumerate(gathered.values())])
    places = project(vectors, modality.astype(np.int64))
    everything = np.concatenate([ids[name] for name in gathered])
    items.set_columns(everything.tolist(), {"x": places[:, 0].tolist(), "y": places[:, 1].tolist()})


def place_new_items(items: Items, index: Index, found: EmbeddedItems) -> Places:
    """(items, 2) positions of new items among those that are on the map; an item with the same vector stays."""
    rows = items.columns("id", "x", "y", "name", where=found.items[0].modality)
    if not rows:
        return np.full((len(found.items), 2), 0.5, dtype=np.float32)
    known = rows[:_NEIGHBOURS]
    vectors = index.vectors(np.array([row[0] for row in known]))
    both = centre(np.concatenate([vectors, found.vectors]), np.zeros(len(known) + len(found.items), dtype=np.int64))
    places = np.array([row[1:3] for row in known], dtype=np.float32)
    placed = place_among(both[len(known) :], both[: len(known)], places)
    number = {item.name: place for place, item in enumerate(found.items)}
    if before := [row for row in rows if row[3] in number]:
        own = np.array([number[row[3]] for row in before])
        stored = index.vectors(np.array([row[0] for row in before]))
        same = np.isclose(stored, found.vectors[own], atol=1e-6).all(1)
        placed[own[same]] = np.array([row[1:3] for row in before], dtype=np.float32)[same]
    return placed


def map_points(
    items: Items,
    modalities: Iterable[str],
    filters: Sequence[Mapping[str, Any]] = (),
    codes: Codes | None = None,
    most: int = MOST_POINTS,
) -> dict[str, Any]:
    """The points that the page draws, column by column; an even selection of each modality if there are too many."""
    names = ("name", "modality", "text", "x", "y", "id")
    rows: list[tuple[Any, ...]] = []
    parts = sorted((items.columns(*names, where=modality) for modality in modalities), key=len)
    for number, part in enumerate(parts):  # the smaller first, because they leave room for the larger
        share = (most - len(rows)) // (len(parts) - number)
        rows += [part[row] for row in np.linspace(0, len(part) - 1, min(share, len(part))).astype(int).tolist()]
    columns = {name: [row[column] for row in rows] for column, name in enumerate(names)}
    ids = columns.pop("id")
    chosen = {about["name"]: place for place, about in enumerate(filters) if about["useful"]}
    values = {name: [] if codes is None else codes[ids, place].tolist() for name, place in chosen.items()}
    return columns | {
        "filters": {name: [None if np.isnan(one) else one for one in own] for name, own in values.items()},
        "text": [text if len(text) <= _LONGEST_TEXT else text[: _LONGEST_TEXT - 1] + "…" for text in columns["text"]],
        "x": [round(x, 4) for x in columns["x"]],
        "y": [round(y, 4) for y in columns["y"]],
    }


def project(vectors: Vectors, modality: npt.NDArray[np.int64], landmarks: int = LANDMARKS, seed: int = 0) -> Places:
    """Positions of all items: t-SNE arranges some of them, and the others join their nearest neighbours.

    The mean of each modality is subtracted first. Otherwise the modalities would lie apart like continents, and
    the map could not show how they correspond.

    ``modality`` (items,) is a number for each modality, ``landmarks`` the number of items that t-SNE arranges.

    Example:
        >>> project(np.eye(8, dtype=np.float32), np.zeros(8, dtype=np.int64)).shape
        (8, 2)
    """
    centred = centre(vectors, modality)
    rng = np.random.default_rng(seed)
    chosen = np.sort(rng.choice(len(centred), min(landmarks, len(centred)), replace=False))
    with threadpool_limits(1, user_api="blas"):  # the matrices are small: more threads only wait for each other
        arranged = _to_unit_square(_arrange(centred[chosen]))
    places = np.empty((len(centred), 2), dtype=np.float32)
    places[chosen] = arranged
    others = np.setdiff1d(np.arange(len(centred)), chosen)
    if len(others):
        places[others] = place_among(centred[others], centred[chosen], arranged, seed)
    return places


def centre(vectors: Vectors, modality: npt.NDArray[np.int64]) -> Vectors:
    """Unit vectors, after subtracting the mean of each modality."""
    out = np.empty_like(vectors, dtype=np.float32)
    for number in np.unique(modality):
        rows = modality == number
        out[rows] = vectors[rows] - vectors[rows].mean(0)
    length = np.linalg.norm(out, axis=1, keepdims=True)
    out /= np.maximum(length, 1e-12)
    return out


def place_among(new: Vectors, known: Vectors, places: Places, seed: int = 0) -> Places:
    """Positions of new items: the weighted mean of their three nearest known items, with a little noise.

    Example:
        >>> known = np.eye(3, dtype=np.float32)
        >>> place_among(known[:1], known, np.array([[0, 0], [1, 0], [0, 1]], dtype=np.float32)).round(1).tolist()
        [[0.0, 0.0]]
    """
    count = min(3, len(known))
    scores, rows = faiss.knn(new, known, count, metric=faiss.METRIC_INNER_PRODUCT)
    weights = np.exp((scores - scores[:, :1]) / 0.05)  # (new, count)
    weights /= weights.sum(1, keepdims=True)
    mixed = (places[rows] * weights[:, :, None]).sum(1)
    noise = np.random.default_rng(seed).normal(scale=0.004, size=mixed.shape)
    found: Places = np.clip(mixed + noise, 0, 1).astype(np.float32)
    return found


def _arrange(vectors: Vectors) -> Places:
    count = len(vectors)
    if count < 4:
        return np.linspace(0, 1, 2 * count, dtype=np.float32).reshape(count, 2)
    if count < 20:
        return main_components(vectors, 2)
    return tsne(main_components(vectors, 40), perplexity=min(30.0, (count - 1) / 4))


def _to_unit_square(places: Places) -> Places:
    low, high = np.quantile(places, [0.002, 0.998], axis=0)  # a few outliers must not shrink the rest
    scaled: Places = np.clip((places - low) / np.maximum(high - low, 1e-9) * 0.96 + 0.02, 0, 1).astype(np.float32)
    return scaled
