"""An opened index with its query encoder, for the command, the service and Python code."""

from __future__ import annotations

import os.path
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np

from crossclr.search.confidence import Calibration
from crossclr.search.faiss_index import fuse_items
from crossclr.search.filters import make_mask
from crossclr.search.index import (
    CODES,
    INDEX,
    ITEMS,
    MAP,
    Index,
    Mask,
    Vectors,
    current_generation,
    open_backend,
    read_meta,
)
from crossclr.search.items import Item, Items, Previews
from crossclr.search.query import MOST, Query, QueryError, combine, with_sentences
from crossclr.search.results import Hit
from crossclr.search.words import fuse_ranks, word_query

if TYPE_CHECKING:
    from crossclr.search.query_encoders import FileQueries, FileQuery
    from crossclr.training import Run

ALL = "all"  # in place of a modality: the results are items of all modalities
FUSED = "fused"  # in place of a modality: the results are whole samples, with all their modalities
FUSED_DEPTH = 200  # results by vectors and by words that are fused, so that their order does not depend on ``top``
_FILTERS = 32
_FUSED = 4  # combinations of modalities that are kept in memory
T = TypeVar("T")


class Queries(Protocol):
    """An encoder of sentences: `TextQueries` with PyTorch, `OnnxQueries` without."""

    def encode(self, texts: Sequence[str], modality: str | None = None) -> Vectors:
        """(texts, dim) unit vectors, by the encoder of a text modality."""

    def warm_up(self) -> None:
        """Load what the first query would wait for."""


class Searcher:
    """Find items by a sentence, a file, other items, all of these together, or a vector.

    Args:
        folder: a complete generation of an index.
        queries: encoder of sentences; None: typed queries are not possible.
        no_text: the reason why they are not.
        files: encoder of files; None: files cannot be queries.
        no_files: the reason why they cannot.
    """

    def __init__(
        self,
        folder: Path,
        queries: Queries | None = None,
        no_text: str = "",
        files: FileQueries | None = None,
        no_files: str = "",
    ) -> None:
        self.folder = folder
        self.meta = read_meta(folder)
        self.items = Items(folder / ITEMS)
        self.indexes: dict[str, Index] = {
            name: open_backend(self.meta, folder, name) for name in self.meta["modalities"]
        }
        self.previews = Previews(folder.parent.parent)
        self.queries, self.no_text = queries, no_text
        self.files, self.no_files = files, no_files
        self._confidence = {
            name: Calibration(**about["confidence"])
            for name, about in self.meta["modalities"].items()
            if "confidence" in about
        }
        self._codes = np.load(folder / CODES)  # (ids, filters)
        self._filter = lru_cache(_FILTERS)(self._make_filter)  # many queries share a filter
        self._fused = lru_cache(_FUSED)(self._fuse)

    @classmethod
    def open(cls, run: Run | str | Path, *, text: bool = True) -> Searcher:
        """Open the index of a run.

        Args:
            run: a run that has an index, or its folder.
            text: whether to load the model, which sentences and files as queries need.

        Raises:
            FileNotFoundError: the run has no index yet.
            ValueError: the index was built from other weights.
        """
        from crossclr.search.query_encoders import open_file_queries, open_text_queries, text_recipe
        from crossclr.training import Run

        run = run if isinstance(run, Run) else Run.open(run)
        folder = current_generation(run.path / INDEX)
        if folder is None:
            raise FileNotFoundError(f"{run.path} has no index yet; build it with: crossclr index {run.path}")
        meta = read_meta(folder)
        if meta["weights"] != run.digest():
            raise ValueError(
                f"the index was built from other weights than those of {run.path}; run crossclr index again"
            )
        if not text:
            return cls(folder, no_text="typed queries are switched off", no_files="queries by files are switched off")
        model = run.load_space()
        queries, no_text = _opened(lambda: open_text_queries(model, meta["text_modality"], text_recipe(run.config)))
        files, no_files = _opened(lambda: open_file_queries(run, model))
        return cls(folder, queries, no_text, files, no_files)

    @property
    def modalities(self) -> tuple[str, ...]:
        """The modalities that a search can return."""
        return tuple(self.indexes)

    def search(self, query: Query | None = None, **parts: Any) -> list[Hit]:
        """The best items for one query.

        Args:
            query: the query. Default: an empty one.
            parts: fields of `Query` to set, as in ``search(text="a red car", top=5)``.

        Raises:
            QueryError: a value is wrong, or nothing says what to find.
            KeyError: there is no item of a given name.
        """
        query = replace(query or Query(), **parts)
        seed = [] if query.like is None else [self.item(query.like)]
        liked, disliked = [*map(self.item, query.more)], [*map(self.item, query.less)]
        own = next(iter(seed or (liked if query.text is None else [])), None)
        wanted, fused = self._wanted(query.find, own.modality if own else query.text_modality, query.file)
        hidden = self._hidden([item for item in [*seed, *disliked] if item.modality in wanted], fused)
        allowed = self._filter(query.filters())
        matches = [] if fused else self._matches(query, wanted, allowed)
        experts = () if fused else tuple(self.meta.get("experts", ()))
        shares: dict[int, dict[str, float]] = {}
        if matches and self.queries is None:
            scores = dict.fromkeys(matches, 0.0)  # nothing encodes the sentence, so its words decide alone
        else:
            vector = self._vector(query, seed, liked, disliked)
            indexes = [self._fused(wanted)] if fused else [self.indexes[name] for name in wanted]
            depth = max(query.top, FUSED_DEPTH if matches else 0, 4 * FUSED_DEPTH if experts else 0) + len(hidden)
            scores = _best(indexes, vector, depth, allowed, hidden) | self._scores(vector, matches)
            if experts:
                scores, shares = self._weigh(vector, list(scores), experts)
        chances = self._chances(query) if not (fused or experts) else {}
        hits = []
        for item in self.items.get(fuse_ranks(scores, matches)[: query.top]):
            chance = chances[item.modality](scores[item.id], query.text or "") if item.modality in chances else None
            if item.id in matches or (chance or 0.0) >= query.min_probability:
                together = self.items.together(item.key) if fused else ()
                hits.append(Hit(item, scores[item.id], chance, item.id in matches, together, shares.get(item.id, {})))
        return hits

    def _chances(self, query: Query) -> dict[str, Calibration]:
        """By modality, what estimates probabilities: known for a sentence that the usual encoder reads."""
        usual = query.text_modality in (None, self.meta["text_modality"])
        chances = self._confidence if query.only_text and usual else {}
        if query.min_probability > 0 and not chances:
            raise QueryError(
                "probabilities are not known here: they need a sentence as the query, and an index with at least "
                "30 validation sentences"
            )
        return chances

    def _matches(self, query: Query, wanted: Sequence[str], allowed: Mask | None) -> list[int]:
        """The items that contain the words of a sentence, best first."""
        expression = word_query(query.clean_text()) if query.only_text else None
        if expression is None:
            return []
        found = self.items.with_words(expression, wanted, MOST)
        inside = found if allowed is None else [item for item in found if item < len(allowed) and allowed[item]]
        return inside[: max(query.top, FUSED_DEPTH)]

    def _scores(self, vector: Vectors, ids: Sequence[int]) -> dict[int, float]:
        """The scores of some items."""
        scores: dict[int, float] = {}
        for modality in {item.modality: None for item in self.items.get(ids)}:
            own = [item.id for item in self.items.get(ids) if item.modality == modality]
            rows = self.indexes[modality].vectors(np.array(own, dtype=np.int64))
            scores.update(zip(own, (rows @ vector[0]).tolist(), strict=True))
        return scores

    def _weigh(
        self, vector: Vectors, ids: Sequence[int], experts: Sequence[str]
    ) -> tuple[dict[int, float], dict[int, dict[str, float]]]:
        """By id, the exact score of candidates and the share of each expert in it.

        The inner product of unit vectors orders items as the similarity does only if they have all experts; see
        `crossclr.models.similarity`. An expert that speaks against an item has no share.
        """
        scores: dict[int, float] = {}
        shares: dict[int, dict[str, float]] = {}
        asked = vector.reshape(1, len(experts), -1)
        for modality in {item.modality: None for item in self.items.get(ids)}:
            own = [item.id for item in self.items.get(ids) if item.modality == modality]
            items = self.indexes[modality].vectors(np.array(own, dtype=np.int64)).reshape(len(own), len(experts), -1)
            weights = (np.linalg.norm(items, axis=2) * np.linalg.norm(asked, axis=2)).sum(axis=1)
            products = (items * asked).sum(axis=2)  # (items, experts)
            scores.update(zip(own, (products.sum(axis=1) / np.where(weights > 0, weights, 1)).tolist(), strict=True))
            speaks = products.clip(min=0)
            speaks /= np.maximum(speaks.sum(axis=1, keepdims=True), 1e-12)
            for number, row, best in zip(own, speaks.tolist(), np.argsort(-speaks, axis=1).tolist(), strict=True):
                shares[number] = {experts[place]: row[place] for place in best if row[place] > 0}
        return scores, shares

    def _vector(self, query: Query, seed: Sequence[Item], liked: Sequence[Item], disliked: Sequence[Item]) -> Vectors:
        """(1, dim) the vector of a query."""
        if query.vector is not None:
            return self._check_vector(query.vector)
        return combine(
            text=None if query.text is None else self._encode(query),
            file=None if query.file is None else query.file.vector,
            more=self._vectors(seed, liked),
            less=self._vectors([], disliked),
            weights=query.weights,
        )

    def _hidden(self, unwanted: Sequence[Item], fused: bool) -> set[int]:
        """The numbers of items that are not returned: those that the query names, or all of their clips."""
        return {one.id for item in unwanted for one in (self.items.of_clip(item.key) if fused else [item])}

    def sample(self, modality: str, count: int) -> list[Item]:
        """Items of a modality, spread evenly over the collection."""
        ids = [row[0] for row in self.items.columns("id", where=modality)]
        step = max(1, len(ids) // count)
        return self.items.get(ids[step // 2 :: step][:count])

    def item(self, name: str) -> Item:
        """The item with a name.

        Raises:
            KeyError: there is no such item.
        """
        found = self.items.named(name)
        if found is None:
            raise KeyError(f"the index has no item {name!r}")
        return found

    def partners(self, item: Item, most: int = 12) -> list[Item]:
        """The other items of the same clip: its sentences, its other images."""
        return [other for other in self.items.of_clip(item.key) if other.id != item.id][:most]

    @cached_property
    def base(self) -> str:
        """The folder that all media files lie in; empty if there are none."""
        roots = self.meta["media_roots"]
        return os.path.commonpath(roots) if roots else ""

    def map_file(self) -> Path:
        """The JSON file with the points of the map."""
        return self.folder / MAP

    def close(self) -> None:
        """Close the files."""
        self.items.close()
        self.previews.close()

    def _vectors(self, seeds: Sequence[Item], judged: Sequence[Item]) -> Vectors | None:
        """Query vectors of items; those that a person judged count together with the sentences of their clips."""
        text = self.meta["text_modality"]
        parts = [self._as_queries([item]) for item in seeds]
        for item in judged:
            others = [] if item.modality == text else self.items.of_clip(item.key)
            sentences = [other for other in others if other.modality == text and text in self.indexes]
            parts.append(with_sentences(self._as_queries([item]), self._as_queries(sentences)))
        return np.concatenate(parts) if parts else None

    def _as_queries(self, items: Sequence[Item]) -> Vectors:
        """(items, dim) vectors of items of one modality, in the form that queries have."""
        if not items:
            return np.empty((0, self.meta["dim"]), dtype=np.float32)
        found = self.indexes[items[0].modality].vectors(np.array([item.id for item in items]))
        if self.meta.get("hub_channels"):  # the channel of the correction, and one that makes items equally long
            found = found.copy()
            found[:, -2:] = np.array([np.sqrt(0.5), 0], dtype=np.float32)
        return found

    def modality(self, find: str | None, own: str | None = None, file: FileQuery | None = None) -> str:
        """The modality of the results: what the caller wants to find, or another one than the query's own.

        Raises:
            QueryError: there is no modality of this name.
        """
        if find is None:
            if file is not None and file.modality in self.indexes:
                return file.modality
            query = own or self.meta["text_modality"]
            return next((name for name in self.indexes if name != query), next(iter(self.indexes)))
        if find not in self.indexes:
            raise QueryError(f"the index has no modality {find!r}; it has {', '.join(self.indexes)}")
        return find

    def _wanted(self, find: str | None, own: str | None, file: FileQuery | None) -> tuple[tuple[str, ...], bool]:
        """The modalities to search, and whether they are fused."""
        if find is None or find in self.indexes:
            return (self.modality(find, own, file),), False
        if find in (ALL, FUSED):
            return self.modalities, find == FUSED
        return tuple(dict.fromkeys(map(self.modality, find.split("+")))), "+" in find

    def _fuse(self, names: tuple[str, ...]) -> Index:
        return fuse_items(self.items, {name: self.indexes[name] for name in names}, self.meta["dim"])

    def _encode(self, query: Query) -> Vectors:
        if self.queries is None:
            raise QueryError(self.no_text)
        known = self.meta["text_modalities"]
        if query.text_modality not in (None, *known):
            raise QueryError(
                f"{query.text_modality!r} cannot encode a sentence; the text modalities are {', '.join(known)}"
            )
        return self.queries.encode([query.clean_text()], query.text_modality)

    def _check_vector(self, vector: Any) -> Vectors:
        query = np.asarray(vector, dtype=np.float32).reshape(1, -1)
        dim = self.meta["dim"]
        if query.shape[1] != dim:
            raise QueryError(f"the vector must have {dim} numbers, got {query.shape[1]}")
        length = float(np.linalg.norm(query))
        if not np.isfinite(length) or length == 0:
            raise QueryError("the vector must be finite and not zero")
        return query / np.float32(length)

    def _make_filter(self, where: tuple[tuple[str, tuple[str, ...]], ...]) -> Mask | None:
        return make_mask(self.meta["filters"], self._codes, dict(where))


def _best(
    indexes: Sequence[Index], vector: Vectors, top: int, allowed: Mask | None, hidden: Collection[int]
) -> dict[int, float]:
    """The best items of some indexes together, with their scores."""
    pairs: list[tuple[int, float]] = []
    for index in indexes:
        scores, ids = index.search(vector, top, allowed)
        pairs += zip(ids[0].tolist(), scores[0].tolist(), strict=True)
    pairs.sort(key=lambda pair: -pair[1])
    return {key: score for key, score in pairs if key != -1 and key not in hidden}


def _opened(make: Callable[[], T]) -> tuple[T | None, str]:
    """What ``make`` returns, or None and the reason why it is not possible."""
    try:
        return make(), ""
    except QueryError as error:
        return None, str(error)
