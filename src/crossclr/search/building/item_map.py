"""The map of a collection: where its items are, and which of them the page draws."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from crossclr.search.building.map_layout import Places, centre, place_among, project
from crossclr.search.building.run_items import EmbeddedItems
from crossclr.search.index.contract import Ids, Index
from crossclr.search.items.item_table import Items

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


def place_new_items(items: Items, index: Index, found: EmbeddedItems, dim: int) -> Places:
    """(items, 2) positions of new items among those that are on the map."""
    known = items.columns("id", "x", "y", where=found.items[0].modality)[:_NEIGHBOURS]
    if not known:
        return np.full((len(found.items), 2), 0.5, dtype=np.float32)
    vectors = index.vectors(np.array([row[0] for row in known]))[:, :dim]
    both = centre(np.concatenate([vectors, found.vectors]), np.zeros(len(known) + len(found.items), dtype=np.int64))
    places = np.array([row[1:] for row in known], dtype=np.float32)
    return place_among(both[len(known) :], both[: len(known)], places)


def map_points(items: Items, most: int = MOST_POINTS) -> dict[str, list[Any]]:
    """The points that the page draws, column by column; an even selection of each modality if there are too many."""
    names = ("name", "modality", "text", "x", "y", "group", "split")
    rows: list[tuple[Any, ...]] = []
    parts = sorted((items.columns(*names, where=modality) for modality in ("a", "b")), key=len)
    for number, part in enumerate(parts):  # the smaller one first, because it leaves room for the larger one
        share = (most - len(rows)) // (len(parts) - number)
        rows += [part[row] for row in np.linspace(0, len(part) - 1, min(share, len(part))).astype(int).tolist()]
    columns = {name: [row[column] for row in rows] for column, name in enumerate(names)}
    return columns | {
        "text": [text if len(text) <= _LONGEST_TEXT else text[: _LONGEST_TEXT - 1] + "…" for text in columns["text"]],
        "x": [round(x, 4) for x in columns["x"]],
        "y": [round(y, 4) for y in columns["y"]],
    }
