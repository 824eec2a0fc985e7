"""The large, unchanging part of a faiss index: an HNSW graph, or inverted lists of product codes (IVF-PQ)."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import faiss as faiss_module
import numpy as np
import numpy.typing as npt

from crossclr.search.index.contract import Ids, Vectors

faiss: Any = faiss_module  # its own stubs lack parameters that it has
FILE, VECTORS, SETTINGS = "graph.faiss", "vectors.npy", "graph.json"
_ASKED = 200  # queries that recall is measured with
Rows = npt.NDArray[np.int64]
Bitmap = npt.NDArray[np.uint8]  # one bit for each row: whether it may be found


@dataclass(frozen=True)
class IndexSettings:
    """How an index is built.

    Args:
        exact_limit: up to so many items every vector is compared.
        hnsw_limit: up to so many items a graph (HNSW) is walked; above, lists of codes are scanned (IVF-PQ).
        links: links of each item in the graph.
        build_effort: candidates looked at for each item while the graph is built.
        target_recall: the search effort is set so that this share of the true ten nearest is found.
        seed: of the random choices.
    """

    exact_limit: int = 20_000
    hnsw_limit: int = 500_000
    links: int = 16
    build_effort: int = 80
    target_recall: float = 0.97
    seed: int = 0


class Graph:
    """Rows 0, 1, 2, ... that are searched approximately; nothing in it changes.

    Args:
        kind: ``hnsw`` or ``ivfpq``.
        index: the faiss index.
        dim: channels of a row (the faiss index may have more, filled with zeros).
        effort: candidates of a walk, or lists that are scanned.
        recall: what that effort found of the true ten nearest, measured while building.
        precise: the rows themselves, where the index holds codes only.
        folder: where it lies on disk, if it does.
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
        self.precise, self.folder = precise, folder

    def __len__(self) -> int:
        return int(self.index.ntotal)

    @classmethod
    def build(cls, vectors: Vectors, settings: IndexSettings, queries: Vectors | None = None) -> Graph:
        """Index rows, then find the smallest effort that reaches the recall asked for.

        Args:
            vectors: (rows, dim) what will be found.
            settings: how to build.
            queries: (queries, dim) examples of what will be asked, to measure recall with; queries of another modality
                lie elsewhere than the rows. Left out, mixtures of two rows are taken.
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
        """The best rows of each query, both (queries, top); -1 and -inf where there are no more.

        Args:
            queries: (queries, dim).
            top: rows for each query.
            allowed: which rows may be found; None: all.
            share: how many rows are allowed, of all; the fewer, the more must be looked at.
        """
        selector = None if allowed is None else faiss.IDSelectorBitmap(allowed)
        if self.kind == "hnsw":
            effort = int(max(self.effort, 2 * top) / max(share, 0.125))
            parameters = faiss.SearchParametersHNSW(sel=selector, efSearch=effort)
            scores, rows = self.index.search(queries, top, params=parameters)
        else:
            wanted = max(10 * top, 200)
            effort = min(int(self.effort / share), int(self.index.nlist))
            parameters = faiss.SearchParametersIVF(sel=selector, nprobe=effort)
            _, rows = self.index.search(self._widened(queries), wanted, params=parameters)
            scores, rows = self._refine(queries, rows, top)
        return np.where(rows < 0, -np.inf, scores).astype(np.float32), rows

    def vectors(self, rows: Rows) -> Vectors:
        """(rows, dim) the vectors, to half precision."""
        if self.precise is not None:
            return self.precise[rows].astype(np.float32)
        found: Vectors = self.index.reconstruct_batch(rows)
        return found

    def save(self, folder: Path) -> None:
        """Write to a folder; what is on disk already is linked, not copied."""
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
        """Open by memory map: pages are read when a search touches them."""
        values = json.loads((folder / SETTINGS).read_text())
        flag = faiss.IO_FLAG_MMAP_IFC if values["kind"] == "hnsw" else faiss.IO_FLAG_MMAP
        index = faiss.read_index(str(folder / FILE), flag)
        precise = np.load(folder / VECTORS, mmap_mode="r") if (folder / VECTORS).is_file() else None
        return cls(values["kind"], index, values["dim"], values["effort"], values["recall"], precise, folder)

    def _widened(self, queries: Vectors) -> Vectors:
        missing = self.index.d - queries.shape[1]
        return np.pad(queries, ((0, 0), (0, missing))) if missing else queries

    def _refine(self, queries: Vectors, rows: Rows, top: int) -> tuple[Vectors, Rows]:
        """Codes are coarse: rank the candidates again by their own vectors."""
        if self.precise is None:
            raise ValueError("an IVF-PQ index needs its vectors beside it")
        candidates = self.precise[np.maximum(rows, 0)].astype(np.float32)  # (queries, candidates, dim)
        scores = np.einsum("qcd,qd->qc", candidates, queries)
        scores[rows < 0] = -np.inf
        best = np.argsort(-scores, axis=1, kind="stable")[:, :top]
        scores, rows = np.take_along_axis(scores, best, 1), np.take_along_axis(rows, best, 1)
        missing = max(0, top - rows.shape[1])
        return (
            np.pad(scores, ((0, 0), (0, missing)), constant_values=-np.inf),
            np.pad(rows, ((0, 0), (0, missing)), constant_values=-1),
        )

    def _tune(self, vectors: Vectors, settings: IndexSettings, queries: Vectors | None) -> None:
        rng = np.random.default_rng(settings.seed)
        if queries is None or not len(queries):
            first, second = vectors[rng.integers(len(vectors), size=(2, _ASKED))]
            asked = 0.7 * first + 0.3 * second
        else:
            asked = queries[np.sort(rng.choice(len(queries), min(_ASKED, len(queries)), replace=False))]
        asked = np.ascontiguousarray(asked, dtype=np.float32)
        top = min(10, len(vectors))
        scores, true = faiss.knn(asked, vectors, top, metric=faiss.METRIC_INNER_PRODUCT)
        most = 1024 if self.kind == "hnsw" else int(self.index.nlist)
        while True:
            near, found = self.search(asked, top)
            hits = (found[:, :, None] == true[:, None, :]).any(2)  # (asked, top)
            # Of equal rows any is right: a sentence that stands a hundred times in the data is no miss.
            self.recall = float((hits | (near >= scores[:, -1:] - 1e-4)).mean())
            if self.recall >= settings.target_recall or self.effort >= most:
                return
            self.effort = min(self.effort * 3 // 2, most)


def describe_settings(settings: IndexSettings) -> dict[str, float]:
    """The settings as plain values."""
    return asdict(settings)


def _build_hnsw(vectors: Vectors, settings: IndexSettings) -> Any:
    # Half precision halves memory and time of a walk; its error (about 1e-4) is far below what ranks mean.
    index = faiss.IndexHNSWSQ(
        vectors.shape[1], faiss.ScalarQuantizer.QT_fp16, settings.links, faiss.METRIC_INNER_PRODUCT
    )
    index.hnsw.efConstruction = settings.build_effort
    index.train(vectors[:1])
    index.add(vectors)
    return index


def _build_ivfpq(vectors: Vectors, settings: IndexSettings) -> Any:
    count, dim = vectors.shape
    width = -(-dim // 8) * 8  # product codes cut a vector into equal parts, so it is filled up with zeros
    lists = int(np.clip(2 ** round(np.log2(4 * count**0.5)), 16, 65_536))
    quantiser = faiss.IndexFlatIP(width)
    index = faiss.IndexIVFPQ(quantiser, width, lists, width // 4, 8, faiss.METRIC_INNER_PRODUCT)
    index.cp.seed, index.cp.niter = settings.seed + 1, 10
    rng = np.random.default_rng(settings.seed)
    sample = np.sort(rng.choice(count, min(count, 40 * lists), replace=False))
    index.train(np.pad(vectors[sample], ((0, 0), (0, width - dim))))
    for start in range(0, count, 65_536):
        index.add(np.pad(vectors[start : start + 65_536], ((0, 0), (0, width - dim))))
    return index


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def bitmap(rows: npt.NDArray[np.bool_]) -> Bitmap:
    """One bit for each row, as faiss wants it."""
    return np.packbits(rows, bitorder="little")


def rows_of(sorted_ids: Ids, ids: Ids) -> Rows:
    """For each id its row among sorted ids, or -1.

    Example:
        >>> rows_of(np.array([2, 5, 9]), np.array([9, 3, 2])).tolist()
        [2, -1, 0]
    """
    if not len(sorted_ids):
        return np.full(len(ids), -1, dtype=np.int64)
    rows = np.minimum(np.searchsorted(sorted_ids, ids), len(sorted_ids) - 1)
    return np.where(sorted_ids[rows] == ids, rows, -1)
