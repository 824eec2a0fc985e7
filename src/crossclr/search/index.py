"""The contract of an index back end, and the files of an index.

Every change of an index writes a new complete folder, a generation, and one file names the current one. Readers open
several files of a generation one after another, so the previous generation stays until the next change.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from crossclr.errors import ReadError
from crossclr.storage import FolderLock, new_folder, write_file
from crossclr.storage.manifest import check_sealed
from crossclr.storage.reading import read_json_object

if TYPE_CHECKING:
    from crossclr.search.confidence import Encoder
    from crossclr.search.items import Items

Vectors = npt.NDArray[np.float32]  # (items, dim)
Ids = npt.NDArray[np.int64]  # (items,) 0 or above
Mask = npt.NDArray[np.bool_]  # indexed by id: whether a search may return the item


class Index(Protocol):
    """What search needs from a back end. With unit vectors the inner product is the cosine."""

    @property
    def dim(self) -> int:
        """Channels of a vector."""

    @property
    def kind(self) -> str:
        """How vectors are compared, such as ``exact`` or ``hnsw``."""

    @property
    def recall(self) -> float | None:
        """Measured share of the true ten nearest that a search returns; None if it is unknown."""

    def __len__(self) -> int:
        """Number of items."""

    def add(self, ids: Ids, vectors: Vectors) -> None:
        """Add items; an item whose id exists is replaced."""

    def delete(self, ids: Ids) -> int:
        """Remove items, ignore unknown ids, and return how many were removed."""

    def compact(self, queries: Vectors | None = None) -> None:
        """Reorganise after many changes, where the back end needs it; ``queries`` are examples to tune with."""

    def search(self, queries: Vectors, top: int, allowed: Mask | None = None) -> tuple[Vectors, Ids]:
        """Scores and ids of the best items for each query, both (queries, top), best first.

        Only items whose entry in ``allowed`` is True are returned; an id past the end of the mask is not allowed. If
        there are fewer than ``top`` items, the row is filled with the id -1 and the score -inf.
        """

    def vectors(self, ids: Ids) -> Vectors:
        """(ids, dim) stored vectors; an unknown id is a KeyError."""

    def save(self, folder: Path) -> None:
        """Write everything to a new folder."""

    @classmethod
    def open(cls, folder: Path) -> Index:
        """Open the index that ``save`` wrote."""


def check_items(ids: Ids, vectors: Vectors, dim: int) -> tuple[Ids, Vectors]:
    """Ids and vectors in the types of the contract, or a ValueError that says what is wrong."""
    ids, vectors = np.asarray(ids, dtype=np.int64), check_vectors(vectors, dim)
    if ids.shape != (len(vectors),):
        raise ValueError(f"there are {len(vectors)} vectors, but the ids have shape {ids.shape}")
    if len(ids) and int(ids.min()) < 0:
        raise ValueError(f"ids must be 0 or above, got {int(ids.min())}")
    if len(np.unique(ids)) != len(ids):
        raise ValueError("an id appears twice in one call; give each item once")
    return ids, vectors


def check_vectors(vectors: Vectors, dim: int) -> Vectors:
    """Vectors (count, dim) in float32, all finite."""
    vectors = np.ascontiguousarray(vectors, dtype=np.float32)
    if vectors.ndim != 2 or vectors.shape[1] != dim:
        raise ValueError(f"vectors must have the shape (count, {dim}), got {vectors.shape}")
    if not np.isfinite(vectors).all():
        raise ValueError("a vector contains NaN or infinity; every number must be finite")
    return vectors


def unit(vectors: npt.NDArray[np.float32]) -> Vectors:
    """Rows at unit length; a row of zeros stays.

    Example:
        >>> unit(np.array([[0.0, 4.0], [0.0, 0.0]], dtype=np.float32)).tolist()
        [[0.0, 1.0], [0.0, 0.0]]
    """
    length = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.ascontiguousarray(vectors / np.maximum(length, 1e-12), dtype=np.float32)


def no_results(queries: int, top: int) -> tuple[Vectors, Ids]:
    """Scores and ids of a search that found nothing yet."""
    return np.full((queries, top), -np.inf, dtype=np.float32), np.full((queries, top), -1, dtype=np.int64)


def allows(allowed: Mask, ids: Ids) -> Mask:
    """(ids,) which ids a mask allows.

    Example:
        >>> allows(np.array([False, True]), np.array([0, 1, 2])).tolist()
        [False, True, False]
    """
    inside: Mask = ids < len(allowed)
    return inside & allowed[np.minimum(ids, max(len(allowed) - 1, 0))] if len(allowed) else inside


INDEX, META, ITEMS, CODES, MAP = "index", "index.json", "items.sqlite", "codes.npy", "map.json"
FORMAT = 8


def read_meta(folder: Path) -> dict[str, Any]:
    """What a generation says about itself."""
    check_sealed(folder, "rebuild it")
    meta = read_json_object(folder / META, "format", "backend", "modalities", "weights")
    if meta["format"] != FORMAT:
        raise ReadError(f"{folder} has the format of another version of crossclr; run crossclr index again")
    return meta


def open_backend(meta: Mapping[str, Any], folder: Path, modality: str) -> Index:
    """Open the saved vectors of a modality."""
    if meta["backend"] == "milvus":
        from crossclr.search.milvus_index import MilvusIndex

        return MilvusIndex.open(folder / modality)
    from crossclr.search.faiss_index import FaissIndex

    return FaissIndex.open(folder / modality)


def write_index(
    folder: Path, items: Items, indexes: Mapping[str, Index], meta: dict[str, Any], encoder: Encoder | None = None
) -> None:
    """Write the vectors and everything that follows from the items, and close the items.

    Probabilities of results are fitted again if there is an encoder of sentences.
    """
    import numpy as np

    from crossclr.search.confidence import fit_confidence
    from crossclr.search.filters import collect_filters
    from crossclr.search.item_map import map_points

    for modality, index in indexes.items():
        index.save(folder / modality)
        about = meta["modalities"][modality]
        about["count"], about["kind"], about["recall"] = len(index), index.kind, index.recall
        about["media"] = sorted({row[0] for row in items.columns("media", where=modality) if row[0]})
    meta["filters"], codes = collect_filters(items)
    items.index_words([name for name, about in meta["modalities"].items() if about["text"]], meta["media_roots"])
    np.save(folder / CODES, codes)
    if encoder is not None:
        fit_confidence(items, indexes, meta, encoder)
    points = json.dumps(map_points(items, indexes, meta["filters"], codes), separators=(",", ":"), ensure_ascii=False)
    (folder / MAP).write_text(points, encoding="utf-8")
    (folder / META).write_text(json.dumps(meta, indent=1, ensure_ascii=False), encoding="utf-8")
    items.close()


POINTER = "CURRENT"
_NAME = re.compile(r"generation-\d{6,}")


def current_generation(root: Path) -> Path | None:
    """The folder of the last complete generation, or None if there is none yet.

    Raises:
        ValueError: the pointer names a folder that does not exist.
    """
    try:
        name = (root / POINTER).read_text().strip()
    except FileNotFoundError:
        return None
    if not _NAME.fullmatch(name) or not (root / name).is_dir():
        raise ValueError(f"{root / POINTER} names {name!r}, which does not exist; delete {root} and rebuild the index")
    return root / name


@contextlib.contextmanager
def new_generation(root: Path) -> Iterator[Path]:
    """A folder to fill; it becomes the current generation when the block ends without an error.

    Only one process can change an index at a time. The previous generation is kept for readers that are about to open
    it; older ones, and what a killed process left behind, are removed.

    Example:
        >>> import tempfile
        >>> root = Path(tempfile.mkdtemp())
        >>> with new_generation(root) as folder:
        ...     _ = (folder / "data").write_text("1")
        >>> current_generation(root).name
        'generation-000001'
    """
    root.mkdir(parents=True, exist_ok=True)
    with FolderLock(root):
        before = current_generation(root)
        number = 1 + max((int(path.name.split("-")[1]) for path in _generations(root)), default=0)
        folder = root / f"generation-{number:06d}"
        with new_folder(folder) as temporary:
            yield temporary
        write_file(root / POINTER, folder.name)
        for other in _generations(root):
            if other not in (folder, before):
                shutil.rmtree(other, ignore_errors=True)


def _generations(root: Path) -> list[Path]:
    return sorted(path for path in root.iterdir() if _NAME.fullmatch(path.name))
