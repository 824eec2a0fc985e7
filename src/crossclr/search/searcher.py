"""An opened index with its query encoder, for the command, the service and Python code."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
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
from crossclr.search.query import QueryError, Weights, combine, with_sentences
from crossclr.search.results import Hit

if TYPE_CHECKING:
    from crossclr.search.query_encoders import FileQueries, FileQuery
    from crossclr.training import Run

MOST = 1000  # results of one query
ALL = "all"  # in place of a modality: the results are items of all modalities
FUSED = "fused"  # in place of a modality: the results are whole samples, with all their modalities
MOST_ITEMS = 50  # items that one query may like or dislike
LONGEST_TEXT = 1000  # characters of a typed query
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

    def search(
        self,
        *,
        text: str | None = None,
        text_modality: str | None = None,
        like: str | None = None,
        file: FileQuery | None = None,
        more: Sequence[str] = (),
        less: Sequence[str] = (),
        weights: Weights | None = None,
        vector: Sequence[float] | Vectors | None = None,
        find: str | None = None,
        top: int = 10,
        splits: Sequence[str] = (),
        groups: Sequence[str] = (),
        where: Mapping[str, Sequence[str]] | None = None,
    ) -> list[Hit]:
        """The best items for one query: a sentence, a file and items in any combination, or one vector.

        Args:
            text: a sentence of at most 1,000 characters.
            text_modality: the modality whose encoder reads the sentence, such as ``spanish``, if the data has several
                that are text. Default: the one named ``text``, or the first.
            like: name of an item to find neighbours of; the item itself is not returned.
            file: a file of your own, from ``files.encode``.
            more: names of items that the results should resemble.
            less: names of items that they should not resemble; they are not returned.
            weights: how much each part counts.
            vector: a vector of the joint space, alone.
            find: modality of the results; ``all``: items of every modality; ``fused``: whole samples, compared by the
                normalised mean of their vectors; ``video+picture``: the same with some modalities. Default: a file's
                modality, or the first that is not the query's own.
            top: number of results.
            splits: return only items of these splits. Default: all.
            groups: return only items of these groups. Default: all.
            where: return only items with these values of other filters, by the name of the filter: a column of the
                captions, ``duration`` or ``date``. Numbers and dates may be ranges such as ``10..20``.

        Raises:
            QueryError: an argument is wrong, or nothing says what to find.
            KeyError: there is no item of a given name.
        """
        if not 1 <= top <= MOST:
            raise QueryError(f"top must be between 1 and {MOST}, got {top}")
        if len(more) + len(less) > MOST_ITEMS:
            raise QueryError(f"one query may name at most {MOST_ITEMS} items, got {len(more) + len(less)}")
        seed = self.item(like) if like is not None else None
        liked = [*map(self.item, more)]
        disliked = [*map(self.item, less)]
        own = seed or (liked[0] if liked and text is None else None)
        wanted, fused = self._wanted(find, own.modality if own else text_modality, file)
        if vector is not None:
            if text is not None or file is not None or seed or liked or disliked:
                raise QueryError("a vector is a whole query; give it without a text, a file and items")
            query = self._check_vector(vector)
        else:
            query = combine(
                text=None if text is None else self._encode(text, text_modality),
                file=None if file is None else file.vector,
                more=self._vectors([seed] if seed else [], liked),
                less=self._vectors([], disliked),
                weights=weights,
            )
        chosen = {**(where or {}), "split": [*splits, *(where or {}).get("split", ())]}
        chosen["group"] = [*groups, *(where or {}).get("group", ())]
        allowed = self._filter(tuple((name, tuple(sorted(set(chosen[name])))) for name in sorted(chosen)))
        unwanted = [item for item in [*([seed] if seed else []), *disliked] if item.modality in wanted]
        hidden = {one.id for item in unwanted for one in (self.items.of_clip(item.key) if fused else [item])}
        found: list[tuple[int, float]] = []
        for index in [self._fused(wanted)] if fused else [self.indexes[name] for name in wanted]:
            scores, ids = index.search(query, top + len(hidden), allowed)
            found += zip(ids[0].tolist(), scores[0].tolist(), strict=True)
        ranked = sorted(found, key=lambda pair: -pair[1])
        by_id = {key: score for key, score in ranked if key != -1 and key not in hidden}
        sentence_only = text is not None and file is None and not (seed or liked or disliked or fused)
        usual = text_modality in (None, self.meta["text_modality"])  # chances are known for its encoder only
        chances = self._confidence if sentence_only and usual else {}
        return [
            Hit(
                item,
                score,
                chances[item.modality](score, text or "") if item.modality in chances else None,
                self.items.together(item.key) if fused else (),
            )
            for item in self.items.get(list(by_id)[:top])
            for score in (by_id[item.id],)
        ]

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

    def _encode(self, text: str, modality: str | None) -> Vectors:
        if self.queries is None:
            raise QueryError(self.no_text)
        known = self.meta["text_modalities"]
        if modality not in (None, *known):
            raise QueryError(f"{modality!r} cannot encode a sentence; the text modalities are {', '.join(known)}")
        text = " ".join(text.split())
        if not text:
            raise QueryError("the text is empty; type what you are looking for")
        if len(text) > LONGEST_TEXT:
            raise QueryError(f"the text has {len(text):,} characters; the limit is {LONGEST_TEXT:,}")
        return self.queries.encode([text], modality)

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


def _opened(make: Callable[[], T]) -> tuple[T | None, str]:
    """What ``make`` returns, or None and the reason why it is not possible."""
    try:
        return make(), ""
    except QueryError as error:
        return None, str(error)
