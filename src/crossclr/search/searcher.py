"""An opened index with its query encoder: what the command, the service and Python code ask."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from crossclr.search.building.create import CODES, INDEX, ITEMS, MAP, META, open_backend
from crossclr.search.building.hubness import explain
from crossclr.search.encoders.text_queries import QueryError, TextQueries, open_text_queries
from crossclr.search.index.contract import Index, Mask, Vectors
from crossclr.search.index.generations import current_generation
from crossclr.search.items.item_table import Item, Items
from crossclr.training import Run

MOST = 1000  # results of one query
_FILTERS = 32


@dataclass(frozen=True)
class Hit:
    """One result.

    Args:
        item: what was found.
        score: its cosine to the query (less a correction against hubs, where the index has one).
    """

    item: Item
    score: float


class Searcher:
    """Finds items by a sentence, by another item or by a vector.

    Args:
        folder: a complete generation of an index.
        queries: encoder of sentences; None: sentences cannot be searched.
        no_text: why not.
    """

    def __init__(self, folder: Path, queries: TextQueries | None = None, no_text: str = "") -> None:
        self.folder = folder
        self.meta: dict[str, Any] = json.loads((folder / META).read_text(encoding="utf-8"))
        self.items = Items(folder / ITEMS)
        self.indexes: dict[str, Index] = {
            name: open_backend(self.meta, folder, name) for name in self.meta["modalities"]
        }
        self.queries, self.no_text = queries, no_text
        self._codes = np.load(folder / CODES, mmap_mode="r")  # (ids, 2) split and group
        self._filters: OrderedDict[tuple[tuple[str, ...], tuple[str, ...]], Mask] = OrderedDict()
        self._lock = threading.Lock()

    @classmethod
    def open(cls, run: Run | str | Path, *, text: bool = True) -> Searcher:
        """The index of a run in its last complete state.

        Args:
            run: a run that has an index, or its folder.
            text: whether sentences shall be searched; the model is loaded for them.

        Raises:
            FileNotFoundError: there is no index yet.
            ValueError: it was built from other weights.
        """
        run = run if isinstance(run, Run) else Run.open(run)
        folder = current_generation(run.path / INDEX)
        if folder is None:
            raise FileNotFoundError(f"{run.path} has no index yet; build it with: crossclr index {run.path}")
        if json.loads((folder / META).read_text(encoding="utf-8"))["weights"] != run.digest():
            raise ValueError(f"the index was built from other weights than {run.path} has; run crossclr index again")
        queries, reason = None, "sentences were switched off"
        if text:
            try:
                queries = open_text_queries(run)
            except QueryError as error:
                reason = str(error)
        return cls(folder, queries, reason)

    @property
    def modalities(self) -> tuple[str, ...]:
        """The modalities that can be found."""
        return tuple(self.indexes)

    def search(
        self,
        *,
        text: str | None = None,
        like: str | None = None,
        vector: Sequence[float] | Vectors | None = None,
        find: str | None = None,
        top: int = 10,
        splits: Sequence[str] = (),
        groups: Sequence[str] = (),
    ) -> list[Hit]:
        """The best items for one query.

        Args:
            text: a sentence.
            like: name of an item whose neighbours are wanted; it is not among them.
            vector: a vector of the joint space.
            find: modality of the results; left out, the one that the query is not of.
            top: how many.
            splits: only items of these splits; empty: of all.
            groups: only items of these groups.

        Raises:
            QueryError: not exactly one of text, like and vector is given, or one of the arguments is wrong.
            KeyError: there is no item of the name ``like``.
        """
        if sum(part is not None for part in (text, like, vector)) != 1:
            raise QueryError("give exactly one of a text, an item to find neighbours of (like) and a vector")
        if not 1 <= top <= MOST:
            raise QueryError(f"top must lie between 1 and {MOST}, got {top}")
        asked = self.item(like) if like is not None else None
        find = find or self._default_modality(asked)
        if find not in self.indexes:
            raise QueryError(f"the index has no modality {find!r}; it has {', '.join(self.indexes)}")
        if text is not None:
            query = self._encode(text)
        elif asked is not None:
            query = self.indexes[asked.modality].vectors(np.array([asked.id]))[:, : self.meta["dim"]]
        else:
            query = self._given(vector)
        if self.meta["hubness"]:
            query = np.pad(query, ((0, 0), (0, 1)), constant_values=1.0)
        allowed = self._filter(tuple(sorted(set(splits))), tuple(sorted(set(groups))))
        extra = 1 if asked is not None and asked.modality == find else 0
        scores, ids = self.indexes[find].search(query, top + extra, allowed)
        own = asked.id if extra and asked is not None else -1
        kept = [(key, score) for key, score in zip(ids[0].tolist(), scores[0].tolist(), strict=True) if key >= 0]
        kept = [pair for pair in kept if pair[0] != own][:top]
        by_id = dict(kept)
        return [Hit(item, by_id[item.id]) for item in self.items.get(list(by_id))]

    def item(self, name: str) -> Item:
        """The item of a name.

        Raises:
            KeyError: there is none.
        """
        found = self.items.named(name)
        if found is None:
            raise KeyError(f"the index has no item {name!r}")
        return found

    def why(self, item: Item) -> list[str]:
        """Sentences about what makes an item special: a hub, hard to find, influential."""
        about = self.meta["modalities"][item.modality]
        return explain(
            item.hub, about["usual"], about["tried"], item.influence, item.connectivity, about["influential"]
        )

    def partners(self, item: Item, most: int = 12) -> list[Item]:
        """What belongs to the same clip: its sentences, its other pictures."""
        return [other for other in self.items.of_clip(item.key) if other.id != item.id][:most]

    def map_file(self) -> Path:
        """The points of the map as JSON."""
        return self.folder / MAP

    def close(self) -> None:
        """Let go of the files."""
        self.items.close()

    def _default_modality(self, asked: Item | None) -> str:
        query_side = asked.modality if asked is not None else self.meta["text_side"]
        others = [name for name in self.indexes if name != query_side]
        return others[0] if others else next(iter(self.indexes))

    def _encode(self, text: str) -> Vectors:
        if self.queries is None:
            raise QueryError(self.no_text)
        if not text.strip():
            raise QueryError("the text is empty; type what you are looking for")
        return self.queries.encode([" ".join(text.split())])

    def _given(self, vector: Any) -> Vectors:
        query = np.asarray(vector, dtype=np.float32).reshape(1, -1)
        dim = self.meta["dim"]
        if query.shape[1] != dim:
            raise QueryError(f"the vector must have {dim} numbers, got {query.shape[1]}")
        length = float(np.linalg.norm(query))
        if not np.isfinite(length) or length == 0:
            raise QueryError("the vector must be finite and not zero")
        return query / np.float32(length)

    def _filter(self, splits: tuple[str, ...], groups: tuple[str, ...]) -> Mask | None:
        if not splits and not groups:
            return None
        key = splits, groups
        with self._lock:
            if key in self._filters:
                self._filters.move_to_end(key)
                return self._filters[key]
        mask: Mask = np.ones(len(self._codes), dtype=np.bool_)
        for column, (what, wanted) in enumerate((("split", splits), ("group", groups))):
            known = self.meta[f"{what}s"]
            if unknown := [name for name in wanted if name not in known]:
                raise QueryError(f"the index has no {what} {unknown[0]!r}")
            if wanted:
                mask &= np.isin(self._codes[:, column], [known.index(name) for name in wanted])
        with self._lock:
            self._filters[key] = mask
            while len(self._filters) > _FILTERS:
                self._filters.popitem(last=False)
        return mask
