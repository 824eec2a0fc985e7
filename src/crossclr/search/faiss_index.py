"""Items with equal vectors share one row, because the same sentence may appear a hundred times in the data.

The default back end: faiss inside the process, saved as files, opened as a memory map.

An index has two parts. The *tail* holds vectors that are compared one by one: all vectors of a small index, and later
those added since the *graph* was built. The graph never changes: a search skips deleted and replaced items, and items
with equal vectors share one of its rows. Adding, replacing and deleting therefore copy only the tail, and saving a
change writes only the tail.

Whole samples as results: one vector for all items of a clip.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import faiss
import numpy as np

from crossclr.search.faiss_graph import Bitmap, Graph, IndexSettings, MappedFiles, Rows, bitmap, rows_of
from crossclr.search.index import Ids, Index, Mask, Vectors, allows, check_items, check_vectors, no_results, unit
from crossclr.search.items import Items
from crossclr.storage import new_folder
from crossclr.storage.manifest import check_sealed
from crossclr.storage.reading import read_json_object, reading


class SharedRows:
    """Which items share a row.

    Args:
        row_of: (items,) the row of each item.

    Example:
        >>> shared = SharedRows(np.array([1, 0, 1]))
        >>> scores, items = shared.expand(np.array([[0.9, 0.1]], dtype=np.float32), np.array([[1, 0]]), None)
        >>> items.tolist()
        [[0, 2]]
    """

    def __init__(self, row_of: Rows) -> None:
        self.row_of = row_of
        self._items = np.argsort(row_of, kind="stable")
        counts = np.bincount(row_of, minlength=int(row_of.max()) + 1)
        self._starts = np.concatenate([[0], np.cumsum(counts)])

    def expand(self, scores: Vectors, rows: Rows, allowed: Mask | None) -> tuple[Vectors, Rows]:
        """Replace rows (queries, top) by their items, best first, and keep as many items as there were rows."""
        top = rows.shape[1]
        out_scores, out = no_results(*rows.shape)
        for query in range(len(rows)):
            filled = 0
            for score, row in zip(scores[query], rows[query], strict=True):
                if row < 0 or filled == top:
                    break
                items = self._items[self._starts[row] : self._starts[row + 1]]
                if allowed is not None:
                    items = items[allowed[items]]
                items = items[: top - filled]
                out[query, filled : filled + len(items)] = items
                out_scores[query, filled : filled + len(items)] = score
                filled += len(items)
        return out_scores, out


def share_rows(vectors: Vectors) -> tuple[SharedRows | None, Vectors]:
    """The distinct rows and which items share them; None and the vectors unchanged if all are distinct.

    Example:
        >>> shared, distinct = share_rows(np.array([[1, 0], [0, 1], [1, 0]], dtype=np.float32))
        >>> len(distinct), bool(shared.row_of[0] == shared.row_of[2])
        (2, True)
    """
    keys = np.ascontiguousarray(vectors).view(f"V{vectors.shape[1] * vectors.itemsize}").ravel()
    _, first, row_of = np.unique(keys, return_index=True, return_inverse=True)
    if len(first) == len(vectors):
        return None, vectors
    return SharedRows(row_of.astype(np.int64)), vectors[first]


META, GRAPH, GRAPH_IDS, GONE = "index.json", "graph", "graph_ids.npy", "gone.npy"
TAIL, TAIL_IDS, ROWS = "tail.npy", "tail_ids.npy", "graph_rows.npy"
_EXACT_SHARE = 0.02  # if a filter allows fewer, comparing all of them is faster than a walk, and finds more
_MASKS = 8


class FaissIndex:
    """Exact for few items, a graph for more, lists of codes for millions; see `IndexSettings`.

    Args:
        dim: channels of a vector.
        settings: how to build.

    Example:
        >>> index = FaissIndex(dim=2)
        >>> index.add(np.array([7, 8]), np.eye(2, dtype=np.float32))
        >>> scores, ids = index.search(np.array([[0.6, 0.8]], dtype=np.float32), top=3)
        >>> ids.tolist()
        [[8, 7, -1]]
    """

    def __init__(self, dim: int, settings: IndexSettings | None = None) -> None:
        if dim < 1:
            raise ValueError(f"dim must be at least 1, got {dim}")
        self._dim = dim
        self.settings = settings or IndexSettings()
        self.graph: Graph | None = None
        self._graph_ids: Ids = np.empty(0, dtype=np.int64)  # sorted
        self._gone: Mask = np.empty(0, dtype=np.bool_)  # which items of the graph were deleted or replaced
        self._shared: SharedRows | None = None  # the row of each item; None: item n has row n
        self._tail: Vectors = np.empty((0, dim), dtype=np.float32)
        self._tail_ids: Ids = np.empty(0, dtype=np.int64)
        self._files = MappedFiles()
        self._masks: OrderedDict[int, tuple[Mask | None, Mask, Bitmap, int]] = OrderedDict()
        self._lock = threading.Lock()  # many threads may search at once; changes need the index alone

    @property
    def dim(self) -> int:
        """Channels of a vector."""
        return self._dim

    @property
    def kind(self) -> str:
        """``exact``, ``hnsw`` or ``ivfpq``."""
        return "exact" if self.graph is None else self.graph.kind

    @property
    def recall(self) -> float:
        """Share of the true ten nearest that was found when the graph was built; 1 without a graph."""
        return 1.0 if self.graph is None else self.graph.recall

    def __len__(self) -> int:
        return len(self._tail_ids) + len(self._gone) - int(self._gone.sum())

    def add(self, ids: Ids, vectors: Vectors) -> None:
        """Add or replace items; call `compact` after adding many."""
        ids, vectors = check_items(ids, vectors, self.dim)
        self.delete(ids)
        self._tail = np.concatenate([self._tail, vectors])
        self._tail_ids = np.concatenate([self._tail_ids, ids])

    def delete(self, ids: Ids) -> int:
        """Remove items and return how many there were."""
        before = len(self)
        ids = np.unique(np.asarray(ids, dtype=np.int64))
        rows = rows_of(self._graph_ids, ids)
        if (rows >= 0).any():
            self._gone = self._gone.copy()  # it may be a memory map
            self._gone[rows[rows >= 0]] = True
        keep = ~np.isin(self._tail_ids, ids)
        if not keep.all():
            self._tail, self._tail_ids = self._tail[keep], self._tail_ids[keep]
        self._masks.clear()
        return before - len(self)

    def search(self, queries: Vectors, top: int, allowed: Mask | None = None) -> tuple[Vectors, Ids]:
        """Scores and ids of the best items, both (queries, top)."""
        queries = check_vectors(queries, self.dim)
        self._files.check()
        if top < 1:
            raise ValueError(f"top must be at least 1, got {top}")
        parts = []
        if len(self._tail):
            parts.append(self._search_tail(queries, top, allowed))
        if self.graph is not None:
            parts.append(self._search_graph(self.graph, queries, top, allowed))
        if not parts:
            return no_results(len(queries), top)
        if len(parts) == 1:
            return parts[0]
        scores, ids = (np.concatenate(both, axis=1) for both in zip(*parts, strict=True))
        best = np.argsort(-scores, axis=1, kind="stable")[:, :top]
        return np.take_along_axis(scores, best, 1), np.take_along_axis(ids, best, 1)

    def vectors(self, ids: Ids) -> Vectors:
        """(ids, dim) stored vectors."""
        self._files.check()
        ids = np.asarray(ids, dtype=np.int64)
        found = np.empty((len(ids), self.dim), dtype=np.float32)
        order = np.argsort(self._tail_ids, kind="stable")
        in_tail = rows_of(self._tail_ids[order], ids)
        found[in_tail >= 0] = self._tail[order[in_tail[in_tail >= 0]]]
        rows = rows_of(self._graph_ids, ids)
        in_graph = (in_tail < 0) & (rows >= 0)
        in_graph[in_graph] = ~self._gone[rows[in_graph]]
        if self.graph is not None and in_graph.any():
            places = rows[in_graph]
            found[in_graph] = self.graph.vectors(places if self._shared is None else self._shared.row_of[places])
        if not (in_graph | (in_tail >= 0)).all():
            raise KeyError(f"the index has no item {int(ids[~(in_graph | (in_tail >= 0))][0])}")
        return found

    def ids(self) -> Ids:
        """All ids, sorted."""
        return np.sort(np.concatenate([self._graph_ids[~self._gone], self._tail_ids]))

    @property
    def needs_compacting(self) -> bool:
        """Whether the tail is too large to compare one by one."""
        return len(self._tail) > max(self.settings.exact_limit, len(self._graph_ids) // 4)

    def compact(self, queries: Vectors | None = None) -> None:
        """Rebuild the graph if the tail or the number of deleted items has become large.

        Args:
            queries: example queries to tune the search effort with (see `Graph.build`).
        """
        gone = int(self._gone.sum())
        if not self.needs_compacting and gone <= max(self.settings.exact_limit, len(self._gone) // 2):
            return
        ids = self.ids()
        vectors = self.vectors(ids)
        self.graph, self._graph_ids, self._gone = None, ids[:0], np.empty(0, dtype=np.bool_)
        self._tail, self._tail_ids, self._shared = vectors, ids, None
        if len(ids) > self.settings.exact_limit:
            # Equal rows would link only to each other, and the graph would fall apart.
            self._shared, distinct = share_rows(vectors)
            self.graph = Graph.build(distinct, self.settings, queries)
            self._graph_ids, self._gone = ids, np.zeros(len(ids), dtype=np.bool_)
            self._tail, self._tail_ids = vectors[:0].copy(), ids[:0]
        self._masks.clear()

    def save(self, folder: Path) -> None:
        """Write to a new folder, which appears only when it is complete."""
        with new_folder(folder) as partial:
            if self.graph is not None:
                self.graph.save(partial / GRAPH)
                np.save(partial / GRAPH_IDS, self._graph_ids)
                np.save(partial / GONE, self._gone)
                if self._shared is not None:
                    np.save(partial / ROWS, self._shared.row_of)
            np.save(partial / TAIL, self._tail)
            np.save(partial / TAIL_IDS, self._tail_ids)
            (partial / META).write_text(json.dumps({"dim": self.dim, "settings": asdict(self.settings)}))

    @classmethod
    def open(cls, folder: Path) -> FaissIndex:
        """Open a saved index as a memory map."""
        check_sealed(folder, "rebuild it")
        values = read_json_object(folder / META, "dim", "settings")
        with reading(folder / META, "settings of an index", advice="rebuild it"):
            dim, settings = int(values["dim"]), IndexSettings(**values["settings"])
        index = cls(dim, settings)
        with reading(folder, "index", advice="rebuild it"):
            index._tail = np.load(index._files.add(folder / TAIL), mmap_mode="r")
            index._tail_ids = np.load(folder / TAIL_IDS)
        if (folder / GRAPH).is_dir():
            index.graph = Graph.open(folder / GRAPH)
            with reading(folder, "index", advice="rebuild it"):
                index._graph_ids = np.load(index._files.add(folder / GRAPH_IDS), mmap_mode="r")
                index._gone = np.load(folder / GONE)
                rows = np.load(folder / ROWS) if (folder / ROWS).is_file() else None
            if rows is not None:
                index._shared = SharedRows(rows)
        return index

    def _search_tail(self, queries: Vectors, top: int, allowed: Mask | None) -> tuple[Vectors, Ids]:
        tail, ids = self._tail, self._tail_ids
        if allowed is not None:
            rows = np.flatnonzero(allows(allowed, ids))
            tail, ids = tail[rows], ids[rows]
        return _exact(queries, tail, ids, top)

    def _search_graph(self, graph: Graph, queries: Vectors, top: int, allowed: Mask | None) -> tuple[Vectors, Ids]:
        items = None
        if allowed is None and not self._gone.any():
            scores, rows = graph.search(queries, top)
        else:
            items, bits, count = self._allowed_rows(graph, allowed)
            if count <= _EXACT_SHARE * len(graph):
                ids = self._graph_ids[items]
                return _exact(queries, self.vectors(ids), ids, top)
            scores, rows = graph.search(queries, top, bits, count / len(graph))
        if self._shared is not None:
            scores, rows = self._shared.expand(scores, rows, items)
        return scores, np.where(rows < 0, -1, self._graph_ids[np.maximum(rows, 0)])

    def _allowed_rows(self, graph: Graph, allowed: Mask | None) -> tuple[Mask, Bitmap, int]:
        """Allowed items and rows, cached for recent masks because many queries share a filter."""
        key = id(allowed)
        with self._lock:
            kept = self._masks.get(key)
            if kept is not None and kept[0] is allowed:
                self._masks.move_to_end(key)
                return kept[1:]
        items = ~self._gone if allowed is None else ~self._gone & allows(allowed, self._graph_ids)
        rows = items
        if self._shared is not None:
            rows = np.zeros(len(graph), dtype=np.bool_)
            rows[self._shared.row_of[items]] = True
        made = allowed, items, bitmap(rows), int(rows.sum())
        with self._lock:
            self._masks[key] = made
            while len(self._masks) > _MASKS:
                self._masks.popitem(last=False)
        return made[1:]


def _exact(queries: Vectors, vectors: Vectors, ids: Ids, top: int) -> tuple[Vectors, Ids]:
    scores, found = no_results(len(queries), top)
    count = min(top, len(ids))
    if count:
        near, rows = faiss.knn(queries, np.ascontiguousarray(vectors), count, metric=faiss.METRIC_INNER_PRODUCT)
        scores[:, :count], found[:, :count] = near, ids[rows]
    return scores, found


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
