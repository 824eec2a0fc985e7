"""The large, immutable part of a faiss index: an HNSW graph, or inverted lists of product codes (IVF-PQ)."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import faiss as faiss_module
import numpy as np
import numpy.typing as npt

from crossclr.errors import ReadError
from crossclr.search.index import Ids, Vectors
from crossclr.storage.reading import read_json_object, reading

faiss: Any = faiss_module  # its own stubs lack parameters that it has
FILE, VECTORS, SETTINGS = "graph.faiss", "vectors.npy", "graph.json"
TUNING_QUERIES = 200
Rows = npt.NDArray[np.int64]
Bitmap = npt.NDArray[np.uint8]  # one bit for each row: whether a search may return it


class MappedFiles:
    """Files that are read as memory maps. The system ends a process that reads behind the end of one that was cut."""

    def __init__(self) -> None:
        self._files: list[tuple[BinaryIO, int, Path]] = []

    def add(self, path: Path) -> Path:
        """Watch a file, and return its path."""
        file = path.open("rb")  # an open file also reports its size after it was deleted
        self._files.append((file, os.fstat(file.fileno()).st_size, path))
        return path

    def check(self) -> None:
        """Check that no file is shorter than it was.

        Raises:
            ReadError: one was cut.
        """
        for file, size, path in self._files:
            if os.fstat(file.fileno()).st_size < size:
                raise ReadError(f"{path} was cut while it was in use; rebuild the index")


@dataclass(frozen=True)
class IndexSettings:
    """How an index is built.

    Args:
        exact_limit: up to this many items, a search compares the query with every vector.
        hnsw_limit: up to this many items, a search walks a graph (HNSW); above, it scans lists of codes (IVF-PQ).
        links: links of each item in the graph.
        build_effort: candidates considered for each item while the graph is built.
        target_recall: the search effort is raised until this share of the true ten nearest is found.
        seed: seed of the random choices.
    """

    exact_limit: int = 20_000
    hnsw_limit: int = 500_000
    links: int = 16
    build_effort: int = 80
    target_recall: float = 0.97
    seed: int = 0


class Graph:
    """Rows 0, 1, 2, ... that are searched approximately and never change.

    ``effort`` is the number of candidates of a walk, or of lists to scan. ``precise`` holds the rows themselves if the
    faiss index stores only codes.
    """

    def __init__(
        self,
        kind: str,
        index: Any,
        dim: int,
        effort: int,
        recall: float = 0.0,
        precise: npt.NDArray[np.float16] | None = None,
        folder: Path | None = None,
    ) -> None:
        self.kind, self.index, self.dim, self.effort, self.recall = kind, index, dim, effort, recall
        self.precise, self.folder, self.files = precise, folder, MappedFiles()

    def __len__(self) -> int:
        return int(self.index.ntotal)

    @classmethod
    def build(cls, vectors: Vectors, settings: IndexSettings, queries: Vectors | None = None) -> Graph:
        """Index rows, then find the smallest effort that reaches the target recall.

        Recall is measured with example queries, because queries of another modality lie elsewhere than the rows.
        Without examples, mixtures of two rows are used.
        """
        dim = vectors.shape[1]
        if len(vectors) <= settings.hnsw_limit:
            built = cls("hnsw", _build_hnsw(vectors, settings), dim, effort=32)
        else:
            built = cls("ivfpq", _build_ivfpq(vectors, settings), dim, effort=8, precise=vectors.astype(np.float16))
        built._tune(vectors, settings, queries)
        return built

    def search(
        self, queries: Vectors, top: int, allowed: Bitmap | None = None, share: float = 1.0
    ) -> tuple[Vectors, Rows]:
        """Scores and rows of the best matches, both (queries, top), filled with -inf and -1.

        ``share`` is the share of rows that are allowed; a smaller share needs more effort.
        """
        self.files.check()
        selector = None if allowed is None else faiss.IDSelectorBitmap(allowed)
        if self.kind == "hnsw":
            effort = int(max(self.effort, 2 * top) / max(share, 0.125))
            parameters = faiss.SearchParametersHNSW(sel=selector, efSearch=effort)
            scores, rows = self.index.search(queries, top, params=parameters)
        else:
            effort = min(int(self.effort / share), int(self.index.nlist))
            parameters = faiss.SearchParametersIVF(sel=selector, nprobe=effort)
            _, rows = self.index.search(_padded(queries, self.index.d), max(10 * top, 200), params=parameters)
            scores, rows = self._refine(queries, rows, top)
        return np.where(rows < 0, -np.inf, scores).astype(np.float32), rows

    def vectors(self, rows: Rows) -> Vectors:
        """(rows, dim) the vectors, in half precision."""
        self.files.check()
        if self.precise is not None:
            return self.precise[rows].astype(np.float32)
        found: Vectors = self.index.reconstruct_batch(rows)
        return found

    def save(self, folder: Path) -> None:
        """Write to a folder; files that exist on disk are linked, not copied."""
        folder.mkdir()
        for name in (FILE, VECTORS):
            if self.folder is not None and (self.folder / name).is_file():
                _link(self.folder / name, folder / name)
            elif name == FILE:
                faiss.write_index(self.index, str(folder / FILE))
            elif self.precise is not None:
                np.save(folder / VECTORS, self.precise)
        values = {"kind": self.kind, "dim": self.dim, "effort": self.effort, "recall": self.recall}
        (folder / SETTINGS).write_text(json.dumps(values))

    @classmethod
    def open(cls, folder: Path) -> Graph:
        """Open as a memory map: a search reads only the pages it touches."""
        values = read_json_object(folder / SETTINGS, "kind", "dim", "effort", "recall")
        with reading(folder / SETTINGS, "settings of an index", advice="rebuild it"):
            kind, dim = str(values["kind"]), int(values["dim"])
            effort, recall = int(values["effort"]), float(values["recall"])
        flag = faiss.IO_FLAG_MMAP_IFC if kind == "hnsw" else faiss.IO_FLAG_MMAP
        with reading(folder, "index", advice="rebuild it"):
            index = faiss.read_index(str(folder / FILE), flag)
            precise = np.load(folder / VECTORS, mmap_mode="r") if (folder / VECTORS).is_file() else None
        graph = cls(kind, index, dim, effort, recall, precise, folder)
        for path in (folder / FILE, *([folder / VECTORS] if precise is not None else [])):
            graph.files.add(path)
        return graph

    def _refine(self, queries: Vectors, rows: Rows, top: int) -> tuple[Vectors, Rows]:
        """Rank the candidates again by their own vectors, because codes are coarse."""
        if self.precise is None:
            raise ValueError("the vectors of this IVF-PQ index are missing; rebuild it")
        candidates = self.precise[np.maximum(rows, 0)].astype(np.float32)  # (queries, candidates, dim)
        scores = np.einsum("qcd,qd->qc", candidates, queries)
        scores[rows < 0] = -np.inf
        best = np.argsort(-scores, axis=1, kind="stable")[:, :top]  # there are at least 10 * top candidates
        return np.take_along_axis(scores, best, 1), np.take_along_axis(rows, best, 1)

    def _tune(self, vectors: Vectors, settings: IndexSettings, queries: Vectors | None) -> None:
        rng = np.random.default_rng(settings.seed)
        if queries is None or not len(queries):
            first, second = vectors[rng.integers(len(vectors), size=(2, TUNING_QUERIES))]
            tried = 0.7 * first + 0.3 * second
        else:
            tried = queries[np.sort(rng.choice(len(queries), min(TUNING_QUERIES, len(queries)), replace=False))]
        tried = np.ascontiguousarray(tried, dtype=np.float32)
        top = min(10, len(vectors))
        scores, true = faiss.knn(tried, vectors, top, metric=faiss.METRIC_INNER_PRODUCT)
        most = 1024 if self.kind == "hnsw" else int(self.index.nlist)
        while True:
            near, found = self.search(tried, top)
            hits = (found[:, :, None] == true[:, None, :]).any(2)  # (tried, top)
            # Any of several equal rows is right: a sentence that appears a hundred times is not a miss.
            self.recall = float((hits | (near >= scores[:, -1:] - 1e-4)).mean())
            if self.recall >= settings.target_recall or self.effort >= most:
                return
            self.effort = min(self.effort * 3 // 2, most)


def _build_hnsw(vectors: Vectors, settings: IndexSettings) -> Any:
    # Half precision halves the memory and time of a walk; its error (about 1e-4) does not change ranks noticeably.
    index = faiss.IndexHNSWSQ(
        vectors.shape[1], faiss.ScalarQuantizer.QT_fp16, settings.links, faiss.METRIC_INNER_PRODUCT
    )
    index.hnsw.efConstruction = settings.build_effort
    index.train(vectors[:1])
    index.add(vectors)
    return index


def _build_ivfpq(vectors: Vectors, settings: IndexSettings) -> Any:
    count, dim = vectors.shape
    width = -(-dim // 8) * 8  # product codes split a vector into equal parts, so it is padded with zeros
    lists = int(np.clip(2 ** round(np.log2(4 * count**0.5)), 16, 65_536))
    quantiser = faiss.IndexFlatIP(width)
    index = faiss.IndexIVFPQ(quantiser, width, lists, width // 4, 8, faiss.METRIC_INNER_PRODUCT)
    index.cp.seed, index.cp.niter = settings.seed + 1, 10
    rng = np.random.default_rng(settings.seed)
    sample = np.sort(rng.choice(count, min(count, 40 * lists), replace=False))
    index.train(_padded(vectors[sample], width))
    for start in range(0, count, 65_536):
        index.add(_padded(vectors[start : start + 65_536], width))
    return index


def _padded(vectors: Vectors, width: int) -> Vectors:
    return np.pad(vectors, ((0, 0), (0, width - vectors.shape[1])))


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def bitmap(rows: npt.NDArray[np.bool_]) -> Bitmap:
    """One bit for each row, in the form that faiss expects."""
    return np.packbits(rows, bitorder="little")


def rows_of(sorted_ids: Ids, ids: Ids) -> Rows:
    """The row of each id among sorted ids, or -1.

    Example:
        >>> rows_of(np.array([2, 5, 9]), np.array([9, 3, 2])).tolist()
        [2, -1, 0]
    """
    if not len(sorted_ids):
        return np.full(len(ids), -1, dtype=np.int64)
    rows = np.minimum(np.searchsorted(sorted_ids, ids), len(sorted_ids) - 1)
    return np.where(sorted_ids[rows] == ids, rows, -1)
