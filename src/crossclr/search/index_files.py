"""The files of an index, and how to open its back end."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crossclr.storage.manifest import check_sealed
from crossclr.storage.reading import ReadError, read_json_object

if TYPE_CHECKING:
    from crossclr.search.confidence import Encoder
    from crossclr.search.index import Index
    from crossclr.search.items import Items


INDEX, META, ITEMS, CODES, MAP = "index", "index.json", "items.sqlite", "codes.npy", "map.json"
FORMAT = 7


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
    np.save(folder / CODES, codes)
    if encoder is not None:
        fit_confidence(items, indexes, meta, encoder)
    points = json.dumps(map_points(items, indexes, meta["filters"], codes), separators=(",", ":"), ensure_ascii=False)
    (folder / MAP).write_text(points, encoding="utf-8")
    (folder / META).write_text(json.dumps(meta, indent=1, ensure_ascii=False), encoding="utf-8")
    items.close()
